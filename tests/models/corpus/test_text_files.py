"""Documents from plain text and JSONL files."""

import gzip
import json
from pathlib import Path

import pytest

from bert_models.corpus import JsonlFiles, TextFiles, open_corpus
from bert_runtime.errors import DataError

from ..corpus_helpers import documents, write


@pytest.mark.parametrize("name", ["a.txt", "a.md.gz"])
def test_blank_lines_and_file_ends_separate_documents(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "\ufeff\n one \r\ntwo\n\n \t\nthree")
    assert documents(open_corpus([path, path])) == [["one", "two"], ["three"]] * 2


def test_document_start_pattern_replaces_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.md", "before\n\n# Title: A\n\np\n\nq\n# Title: B\n\nr\nnot # Title: C\n")
    corpus = open_corpus([path], document_start="^# Title:")
    assert documents(corpus) == [["before"], ["# Title: A", "p", "q"], ["# Title: B", "r", "not # Title: C"]]


def test_document_start_pattern_matches_leading_spaces(tmp_path: Path) -> None:
    path = write(tmp_path / "wiki.txt", " = A = \n x \n = = B = = \n = C = \n")
    assert documents(TextFiles([path], document_start="^ = [^=]")) == [["= A =", "x", "= = B = ="], ["= C ="]]


def test_one_per_line_makes_every_line_a_document(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\ntwo\n\nthree\n")
    assert documents(open_corpus([path], one_per_line=True)) == [["one"], ["two"], ["three"]]


def test_jsonl_row_is_a_document(tmp_path: Path) -> None:
    rows = [{"text": "one\n\ntwo\r\n"}, {"text": " \n"}, {"text": "three", "id": 7}]
    path = write(tmp_path / "a.jsonl.gz", "\n".join(map(json.dumps, rows)) + "\n\n")
    assert documents(open_corpus([path])) == [["one", "two"], ["three"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", r"a.jsonl:2: not JSON: Expecting property name"),
        (b"[1]", r"a.jsonl:2: expected a JSON object, found list"),
        (b'{"body": "x", "id": 1}', r"a.jsonl:2: expected a text in the field 'text', found the fields 'body', 'id'"),
        (b'{"text": 3}', r"a.jsonl:2: expected a text in the field 'text', found int"),
        (b'{"text": "x\\ud800"}', r"a.jsonl:2: expected text .* found a lone surrogate \(U\+D800\) at character 1"),
        (b'{"text": "\xe9"}', r"a.jsonl:2: expected UTF-8 text, found byte 0xe9"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(DataError, match=message):
        list(JsonlFiles([path]).sentences())


def test_invalid_utf8_error_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n" * 5000 + b"caf\xe9\n")
    with pytest.raises(DataError, match=r"a.txt:5001: expected UTF-8 text, found byte 0xe9"):
        list(TextFiles([path]).sentences())


def test_errors_name_damaged_archive_and_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\n" * 100)[:-9])
    with pytest.raises(DataError, match=r"a.txt.gz: cannot be read"):
        list(TextFiles([path]).sentences())
    missing = TextFiles([tmp_path / "none.txt"])
    with pytest.raises(DataError, match=r"none.txt: no such file"):
        list(missing.sentences())
    with pytest.raises(DataError, match=r"none.txt: no such file"):
        missing.fingerprint()


def test_mixed_sources_and_inapplicable_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a.txt \(text\), b.jsonl \(jsonl\)"):
        open_corpus(["a.txt", "b.jsonl"])
    with pytest.raises(DataError, match="one dataset"):
        open_corpus([tmp_path, tmp_path])
    with pytest.raises(DataError, match="at least one file"):
        open_corpus([])
    with pytest.raises(DataError, match="every jsonl row is a document"):
        open_corpus(["b.jsonl"], document_start="^#")
    with pytest.raises(DataError, match="expected a regular expression as document_start"):
        TextFiles(["a.txt"], document_start="(")
    with pytest.raises(DataError, match="found both"):
        TextFiles(["a.txt"], document_start="#", one_per_line=True)


def test_fingerprint_depends_on_contents_and_settings_not_on_names(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.txt", "one\n"), write(tmp_path / "b.txt", "one\n")
    assert TextFiles([a]).fingerprint() == TextFiles([b]).fingerprint()
    different = [TextFiles([a, b]), TextFiles([a], one_per_line=True), TextFiles([a], document_start="x")]
    assert len({corpus.fingerprint() for corpus in [TextFiles([a]), *different, JsonlFiles([a])]}) == 5
    before = TextFiles([a]).fingerprint()
    write(a, "One\n")
    assert TextFiles([a]).fingerprint() != before


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv.gz", "rows.parquet", "rows.json"])
def test_tables_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text,label\nhello,greeting\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"rows\..*expected plain text or JSONL, found a \.\w+ file.*convert it to JSONL"
    ):
        open_corpus([tmp_path / name])


def test_field_of_plain_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="plain text has no field 'body'"):
        open_corpus([write(tmp_path / "a.txt", "one\n")], field="body")
