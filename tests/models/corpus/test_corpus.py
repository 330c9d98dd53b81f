"""Documents from plain text, JSONL and the `datasets` library."""

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_models.corpus import Corpus, HuggingFaceDataset, JsonlFiles, TextFiles, open_corpus
from bert_runtime.errors import DataError, MissingExtraError


def documents(corpus: Corpus) -> list[list[str]]:
    found: list[list[str]] = []
    for sentence in corpus.sentences():
        if sentence.starts_document:
            found.append([])
        found[-1].append(sentence.text)
    return found


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.md.gz"])
def test_blank_lines_end_documents_and_so_do_files(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "\ufeff\n one \r\ntwo\n\n \t\nthree")
    assert documents(open_corpus([path, path])) == [["one", "two"], ["three"]] * 2


def test_a_pattern_starts_documents_and_blank_lines_mean_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.md", "before\n\n# Title: A\n\np\n\nq\n# Title: B\n\nr\nnot # Title: C\n")
    corpus = open_corpus([path], document_start="^# Title:")
    assert documents(corpus) == [["before"], ["# Title: A", "p", "q"], ["# Title: B", "r", "not # Title: C"]]


def test_a_pattern_sees_the_spaces_of_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "wiki.txt", " = A = \n x \n = = B = = \n = C = \n")
    assert documents(TextFiles([path], document_start="^ = [^=]")) == [["= A =", "x", "= = B = ="], ["= C ="]]


def test_a_line_may_be_a_document(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\ntwo\n\nthree\n")
    assert documents(open_corpus([path], one_per_line=True)) == [["one"], ["two"], ["three"]]


def test_a_jsonl_row_is_a_document(tmp_path: Path) -> None:
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
        (b'{"text": "x\\ud800"}', r"a.jsonl:2: the text holds a lone surrogate \(U\+D800\) at character 1"),
        (b'{"text": "\xe9"}', r"a.jsonl:2: expected UTF-8 text, found byte 0xe9"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(DataError, match=message):
        list(JsonlFiles([path]).sentences())


def test_text_that_is_not_utf8_is_found_in_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n" * 5000 + b"caf\xe9\n")
    with pytest.raises(DataError, match=r"a.txt:5001: expected UTF-8 text, found byte 0xe9"):
        list(TextFiles([path]).sentences())


def test_a_damaged_archive_and_a_missing_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\n" * 100)[:-9])
    with pytest.raises(DataError, match=r"a.txt.gz:\d+: cannot be read"):
        list(TextFiles([path]).sentences())
    missing = TextFiles([tmp_path / "none.txt"])
    with pytest.raises(DataError, match=r"none.txt: no such file"):
        list(missing.sentences())
    with pytest.raises(DataError, match=r"none.txt: no such file"):
        missing.fingerprint()


def test_sources_of_one_kind_only(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a.txt \(text\), b.jsonl \(jsonl\)"):
        open_corpus(["a.txt", "b.jsonl"])
    with pytest.raises(DataError, match="one dataset"):
        open_corpus([tmp_path, tmp_path])
    with pytest.raises(DataError, match="at least one file"):
        open_corpus([])
    with pytest.raises(DataError, match="no document start to choose"):
        open_corpus(["b.jsonl"], document_start="^#")
    with pytest.raises(DataError, match="no regular expression"):
        TextFiles(["a.txt"], document_start="(")
    with pytest.raises(DataError, match="not both"):
        TextFiles(["a.txt"], document_start="#", one_per_line=True)


def test_the_fingerprint_follows_contents_and_settings_but_not_names(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.txt", "one\n"), write(tmp_path / "b.txt", "one\n")
    assert TextFiles([a]).fingerprint() == TextFiles([b]).fingerprint()
    different = [TextFiles([a, b]), TextFiles([a], one_per_line=True), TextFiles([a], document_start="x")]
    assert len({each.fingerprint() for each in [TextFiles([a]), *different, JsonlFiles([a])]}) == 5
    before = TextFiles([a]).fingerprint()
    write(a, "One\n")
    assert TextFiles([a]).fingerprint() != before


class FakeLibrary:
    """Stands in for `datasets` where it would ask the hub."""

    rows: tuple[dict[str, Any], ...] = ({"text": "one\ntwo", "id": 1}, {"text": "three", "id": 2})

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def load_dataset(self, name: str, config: str | None, **options: Any) -> Iterator[dict[str, Any]]:
        self.calls.append((name, config, options))
        if options["split"] != "train":
            raise ValueError("Bad split")
        return iter(self.rows)

    def load_from_disk(self, name: str) -> dict[str, tuple[dict[str, Any], ...]]:
        self.calls.append((name,))
        return {"train": self.rows}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    monkeypatch.setitem(sys.modules, "datasets", fake)  # type: ignore[arg-type]
    return fake


def test_a_dataset_folder_is_streamed(tmp_path: Path, library: FakeLibrary) -> None:
    (tmp_path / "train.parquet").write_bytes(b"1")
    corpus = open_corpus([tmp_path])
    assert documents(corpus) == [["one", "two"], ["three"]]
    assert library.calls == [(str(tmp_path), None, {"split": "train", "revision": None, "streaming": True})]
    before = corpus.fingerprint()
    (tmp_path / "train.parquet").write_bytes(b"2")
    assert corpus.fingerprint() != before


def test_what_save_to_disk_wrote_is_loaded_from_there(tmp_path: Path, library: FakeLibrary) -> None:
    (tmp_path / "dataset_dict.json").write_text("{}")
    assert documents(open_corpus([tmp_path])) == [["one", "two"], ["three"]]
    assert library.calls == [(str(tmp_path),)]


def test_a_dataset_on_the_hub_is_pinned_to_its_commit(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0" * 40

    class Api:
        def dataset_info(self, name: str, revision: str | None) -> SimpleNamespace:
            return SimpleNamespace(sha=commit)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=Api))  # type: ignore[arg-type]
    corpus = open_corpus(["dataset:org/name/en@main"])
    assert documents(corpus) == [["one", "two"], ["three"]]
    assert library.calls == [("org/name", "en", {"split": "train", "revision": commit, "streaming": True})]
    before = corpus.fingerprint()
    commit = "1" * 40  # somebody has pushed meanwhile
    assert corpus.fingerprint() == before
    assert open_corpus(["dataset:org/name/en@main"]).fingerprint() != before


def test_a_hub_that_does_not_answer_is_not_asked_for_a_commit(
    library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ConnectionError("offline")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=refuse))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"org/name: no such folder, and the hub does not answer for it: offline"):
        open_corpus(["dataset:org/name"]).fingerprint()
    corpus = open_corpus([f"dataset:org/name@{'a' * 40}"])
    assert documents(corpus) == [["one", "two"], ["three"]]
    assert len(corpus.fingerprint()) == 64


def test_errors_of_a_dataset_name_row_and_split(
    tmp_path: Path, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"row 1 of 'train': expected a text in the column 'body', found the columns"):
        list(open_corpus([tmp_path], field="body").sentences())
    with pytest.raises(DataError, match=r"row 1 of 'train': expected a text in the column 'id', found int"):
        list(open_corpus([tmp_path], field="id").sentences())
    with pytest.raises(DataError, match=r"split 'none' cannot be read: Bad split"):
        list(open_corpus([tmp_path], split="none").sentences())
    with pytest.raises(DataError, match="org/name/config"):
        HuggingFaceDataset.from_name("a/b/c/d")
    monkeypatch.setitem(sys.modules, "datasets", None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError, match=r"bert-export\[train\]"):
        list(open_corpus([tmp_path]).sentences())


def test_plain_text_has_no_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="plain text has no column 'body'"):
        open_corpus([write(tmp_path / "a.txt", "one\n")], field="body")


def test_a_folder_of_the_library_itself(tmp_path: Path) -> None:
    """A dataset as the library reads it from files, another column of another split."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    for split, words in (("train", "one two"), ("test", "three\\nfour")):
        write(folder / f"{split}.jsonl", f'{{"body": "{words}", "id": 1}}\n{{"body": "five {split}", "id": 2}}\n')
    corpus = open_corpus([folder], field="body", split="test")
    assert [(each.text, each.starts_document) for each in corpus.sentences()] == [
        ("three", True), ("four", False), ("five test", True),
    ]  # fmt: skip
    assert corpus.fingerprint() != open_corpus([folder], field="body").fingerprint()
    with pytest.raises(DataError, match="text"):
        list(open_corpus([folder]).sentences())
