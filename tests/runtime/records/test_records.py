"""JSONL, CSV, TSV and text files: rows, fields, and errors with file and line."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from bert_runtime.errors import DataError
from bert_runtime.records import FORMATS, Record, iter_records, read_records

ROWS = [("I lost my card", "help"), ('he said "hi", then left', "other"), ("déjà vu 😀", "help")]

CONTENTS = {
    ".jsonl": "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS),
    ".csv": 'text,label\nI lost my card,help\n"he said ""hi"", then left",other\ndéjà vu 😀,help\n',
    ".tsv": 'text\tlabel\nI lost my card\thelp\nhe said "hi", then left\tother\ndéjà vu 😀\thelp\n',
}


def write(path: Path, content: str | bytes) -> Path:
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def pairs(path: Path, columns: dict[str, str] | None = None) -> list[tuple[str, str]]:
    return [(record.text(), record.label()) for record in read_records(path, columns)]


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("suffix", CONTENTS)
def test_formats_yield_the_same_rows(tmp_path: Path, suffix: str, ending: str) -> None:
    assert pairs(write(tmp_path / f"data{suffix}{ending}", CONTENTS[suffix])) == ROWS


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_plain_text_is_one_text_per_line(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"data.txt{ending}", 'first, "line"\r\n\n  \n  indented\tline\n')
    assert [(record.text(), record.line) for record in read_records(path)] == [
        ('first, "line"', 1),
        ("  indented\tline", 4),
    ]


def test_every_format_is_tested() -> None:
    elsewhere = {".conll", ".conllu", ".json"}  # test_conll.py and test_squad.py
    assert {*CONTENTS, ".txt", ".md"} | elsewhere == set(FORMATS)


@pytest.mark.parametrize("suffix", CONTENTS)
def test_byte_order_mark_and_windows_line_ends(tmp_path: Path, suffix: str) -> None:
    content = b"\xef\xbb\xbf" + CONTENTS[suffix].replace("\n", "\r\n").encode()
    assert pairs(write(tmp_path / f"data{suffix}", content)) == ROWS


@pytest.mark.parametrize("suffix", CONTENTS)
def test_blank_lines_are_skipped_but_counted(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"data{suffix}", "\n" + CONTENTS[suffix].replace("\n", "\n\n"))
    records = read_records(path)
    assert [(record.text(), record.label()) for record in records] == ROWS
    assert [record.line for record in records] == ([2, 4, 6] if suffix == ".jsonl" else [4, 6, 8])


def test_csv_row_over_several_lines_is_numbered_by_its_first(tmp_path: Path) -> None:
    path = write(tmp_path / "data.csv", 'text,label\n"one\ntwo\nthree",a\nfour,b\n')
    assert [(record.text(), record.where) for record in read_records(path)] == [
        ("one\ntwo\nthree", f"{path}:2"),
        ("four", f"{path}:5"),
    ]


def test_tsv_quotes_are_plain_characters(tmp_path: Path) -> None:
    path = write(tmp_path / "data.tsv", 'text\tlabel\n"open\ta\nshut"\tb\n')
    assert pairs(path) == [('"open', "a"), ('shut"', "b")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.csv", "id,sentence,category\n7,hello,a\n8,bye,b\n"),
        ("data.tsv", "id\tsentence\tcategory\n7\thello\ta\n8\tbye\tb\n"),
        ("data.jsonl", '{"sentence": "hello", "category": "a"}\n{"category": "b", "sentence": "bye"}\n'),
    ],
)
def test_columns_are_renamed(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path / name, content)
    assert pairs(path, {"text": "sentence", "label": "category"}) == [("hello", "a"), ("bye", "b")]


def test_columns_may_swap_names(tmp_path: Path) -> None:
    path = write(tmp_path / "data.csv", "text,text_pair,label\na,b,c\n")
    (record,) = read_records(path, {"text": "text_pair", "text_pair": "text"})
    assert (record.text(), record.text("text_pair"), record.label()) == ("b", "a", "c")


@pytest.mark.parametrize(("name", "separator"), [("data.csv", ","), ("data.tsv", "\t")])
def test_numbered_columns_mean_no_header(tmp_path: Path, name: str, separator: str) -> None:
    path = write(tmp_path / name, "\n".join(separator.join(row) for row in [("0", "hello", "a"), ("1", "bye", "b")]))
    records = read_records(path, {"text": "1", "label": "2"})
    assert [(record.text(), record.label(), record.line) for record in records] == [("hello", "a", 1), ("bye", "b", 2)]


def test_rows_are_read_lazily(tmp_path: Path) -> None:
    path = write(tmp_path / "data.jsonl", '{"text": "fine"}\nbroken\n')
    rows = iter_records(path)
    assert next(rows).text() == "fine"
    with pytest.raises(DataError, match=r"data\.jsonl:2: not JSON"):
        next(rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.jsonl", '{"text": "a"}\n\n{"text": \n', ":3: not JSON: Expecting value at column 10"),
        ("data.jsonl", '{"text": "a"}\n["a"]\n', ":2: expected a JSON object, found list"),
        ("data.csv", "text,label\na,b\nc\n", ":3: expected 2 columns as in the first row, found 1"),
        ("data.csv", "text,label\na,b\nc,d,e\n", ":3: expected 2 columns as in the first row, found 3"),
        ("data.csv", 'text,label\n"a\nb",c\n"open,d\n', ":4: malformed row: unexpected end of data"),
        ("data.csv", 'text,label\na,b\n"c"d,e\n', ":3: malformed row: ',' expected after '\"'"),
        ("data.csv", "sentence,label\na,b\n", ":1: expected a header with a column 'text'"),
        ("data.csv", "\n\nsentence,label\na,b\n", ":3: expected a header with a column 'text'"),
        ("data.csv", "text,label,label\na,b,c\n", ":1: column 'label' appears more than once"),
        ("data.tsv", "text\tlabel\na\tb\tc\n", ":2: expected 2 columns as in the first row, found 3"),
        ("data.tsv", "text,label\na,b\n", ":1: expected a header with a column 'text'"),
    ],
)
def test_malformed_rows_are_reported_with_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=re.escape(f"{path}{message}")):
        read_records(path)


def test_missing_header_error_suggests_columns_option(tmp_path: Path) -> None:
    path = write(tmp_path / "data.csv", "I lost it,help\n")
    with pytest.raises(DataError, match=re.escape("found 'I lost it', 'help'") + ".*--columns text=0,label=1"):
        read_records(path)


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("data.csv", "text,label\na,b\n", {"label": "category"}, ":2: expected 'category', found text, label"),
        ("data.csv", "a,b\n", {"text": "0", "label": "2"}, ":1: expected '2', found 0, 1"),
        ("data.jsonl", '{"s": "a"}\n{"t": "a"}\n', {"text": "s"}, ":2: expected 's', found t"),
    ],
)
def test_missing_columns_are_reported(
    tmp_path: Path, name: str, content: str, columns: dict[str, str], message: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=re.escape(f"{path}{message}")):
        read_records(path, columns)


@pytest.mark.parametrize(
    "name", ["data.jsonl", "data.csv", "data.tsv", "data.txt", "data.conll", "data.conllu", "data.jsonl.gz"]
)
@pytest.mark.parametrize("content", ["", "\n \n"])
def test_empty_files_are_an_error(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=re.escape(f"{path}: expected at least one row, found none")):
        read_records(path)


def test_header_without_rows_is_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected at least one row, found none"):
        read_records(write(tmp_path / "data.csv", "text,label\n"))


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for name, message in (
        ("absent.csv", "no such file"),
        ("absent", "no such file"),
        ("folder.csv", "cannot be read: .*directory"),
    ):
        with pytest.raises(DataError, match=f"{re.escape(name)}: {message}"):
            read_records(tmp_path / name)


def test_parquet_is_pointed_to_batch(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").touch()
    with pytest.raises(DataError, match=r"; Parquet is read by bert-export batch$"):
        read_records(tmp_path / "x.parquet")


@pytest.mark.parametrize("name", ["data.xml", "data", "data.gz", "data.csv.zip", ".csv"])
def test_unknown_extensions_are_an_error(tmp_path: Path, name: str) -> None:
    formats = ".jsonl, .csv, .tsv, .txt, .md, .conll, .conllu, .json (or one of these with .gz)"
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=re.escape(f"{name}: expected a file that ends in {formats}")):
        read_records(tmp_path / name)


@pytest.mark.parametrize("suffix", FORMATS)
def test_other_encodings_are_refused(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"data{suffix}", CONTENTS.get(suffix, "déjà vu\n").encode().replace("é".encode(), b"\xe9"))
    if suffix == ".jsonl":  # json.dumps escapes; write the letter itself
        path.write_bytes(b'{"text": "d\xe9j\xe0"}\n')
    with pytest.raises(DataError, match=rf"data\{suffix}:\d: expected UTF-8 text, found byte 0xe9; .*iconv"):
        read_records(path)


def _gzip_damage() -> dict[str, bytes]:
    whole = gzip.compress(("text,label\n" + "hello there,a\n" * 500).encode())
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    invalid = whole[:10] + b"\xff" * 40  # a block type that deflate does not have
    return {"not gzip": b"text,label\n", "cut short": whole[:-20], "bit flip": bytes(flipped), "not deflate": invalid}


@pytest.mark.parametrize("damage", _gzip_damage())
def test_damaged_gzip_is_reported(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "data.csv.gz"
    path.write_bytes(_gzip_damage()[damage])
    with pytest.raises(DataError, match=re.escape(f"{path}: cannot be read")):
        read_records(path)


@pytest.mark.parametrize(
    "line", ['{"text": "a", "n": ' + "1" * 5000 + "}", '{"text": ' + "[" * 100_000], ids=["huge number", "deep nesting"]
)
def test_json_beyond_python_limits_is_reported(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "data.jsonl", f'{{"text": "a"}}\n{line}\n')
    with pytest.raises(DataError, match=re.escape(f"{path}:2: not JSON")):
        read_records(path)


def test_cells_longer_than_csv_default_limit(tmp_path: Path) -> None:
    """A document may be longer than the 131,072 characters that Python's csv module allows by default."""
    text = "word " * 40_000
    assert pairs(write(tmp_path / "data.csv", f'text,label\n"{text}",a\n')) == [(text, "a")]


def record(**fields: object) -> Record:
    return Record(fields, Path("some.jsonl"), 7)


def test_text_must_be_a_nonempty_string() -> None:
    assert record(text=" a ").text() == " a "
    for fields, message in (
        ({}, "expected a field 'text', found only nothing"),
        ({"label": "a"}, "expected a field 'text', found only 'label'"),
        ({"text": None}, "expected a field 'text'"),
        ({"text": 5}, "expected 'text' to be a string, found int"),
        ({"text": " \t"}, "'text' is empty"),
    ):
        with pytest.raises(DataError, match=re.escape(f"some.jsonl:7: {message}")):
            record(**fields).text()


def test_optional_text_may_be_missing_but_not_malformed() -> None:
    assert record(text_pair="b").optional_text("text_pair") == "b"
    assert [record(**fields).optional_text("text_pair") for fields in ({}, {"text_pair": None}, {"text_pair": ""})] == [
        None
    ] * 3
    with pytest.raises(DataError, match=r"some\.jsonl:7: expected 'text_pair' to be a string, found list"):
        record(text_pair=[]).optional_text("text_pair")


def test_labels_are_names_or_whole_numbers() -> None:
    assert [record(label=label).label() for label in ("a", " a ", 3, 0, "3")] == ["a", "a", "3", "0", "3"]
    for label in (True, 1.5, None, "", ["a"]):
        with pytest.raises(DataError, match=r"some\.jsonl:7: .*label"):
            record(label=label).label()


def test_numbers_must_be_finite() -> None:
    assert [record(score=score).number("score") for score in ("4.75", 3, 2.5, " 1e-3 ")] == [4.75, 3.0, 2.5, 0.001]
    for score in ("", "high", None, [1], "nan", "inf", "-inf", float("nan"), 10**400):
        with pytest.raises(DataError, match=r"some\.jsonl:7: expected a (finite )?number in 'score'"):
            record(score=score).number("score")


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "columns", "rows", "labels"),
    [
        ("rte/train.tsv", {"text": "sentence1", "text_pair": "sentence2"}, 2127, {"entailment": 1078}),
        ("rte/val.tsv", {"text": "1", "text_pair": "2", "label": "3"}, 363, {"entailment": 171}),
        ("sst2/train.tsv.gz", {"text": "sentence"}, 60_614, {}),
        ("stsb/stsb-en-dev.csv", {"text": "0", "text_pair": "1", "label": "2"}, 1500, {}),
    ],
)
def test_public_datasets(
    shared_data: Path, name: str, columns: dict[str, str], rows: int, labels: dict[str, int]
) -> None:
    """Row counts as stated in the datasets' README."""
    records = read_records(shared_data / name, columns)
    assert len(records) == rows
    assert all(record.text() for record in records)
    counts = Counter(record.label() for record in records)
    assert {label: counts[label] for label in labels} == labels
