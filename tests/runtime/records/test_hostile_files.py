"""Data files that are not what they seem: other encodings, archives that expand, endless lines, names that are none."""

import gzip
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_runtime.errors import DataError
from bert_runtime.records import Record, iter_records, iter_rows, open_text, read_records

MEGABYTE = 2**20

BAD_LINES: dict[str, tuple[bytes, int]] = {
    ".txt": (b"one\r\ntwo\nth\xe9\nfour\n", 3),
    ".jsonl": (b'{"text": "one"}\n\n{"text": "tw\xe9"}\n{"text": "three"}\n', 3),
    ".csv": (b'text,other\none,"two\nlines"\nthr\xe9e,x\nfour,y\n', 4),
    ".tsv": (b"text\tother\none\tx\ntw\xe9\ty\n", 3),
    ".conll": (b"one O\n\ntw\xe9 O\n", 3),
    ".json": (b'{"data":\n\n "\xe9"}', 3),
}
"""A file of each format with a byte that is not UTF-8, and its line."""


@pytest.mark.parametrize("suffix", BAD_LINES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_bytes_that_are_not_utf8_are_found_by_line(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    content, line = BAD_LINES[suffix]
    path = tmp_path / (f"data{suffix}" if pack is bytes else f"data{suffix}.gz")
    path.write_bytes(pack(content))
    with pytest.raises(DataError) as caught:
        read_records(path)
    assert str(caught.value) == (
        f"{path}:{line}: expected UTF-8 text, found byte 0xe9; convert the file with: iconv -f latin1 -t utf-8"
    )


def test_rows_before_other_bytes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_bytes(b"fine\n" * 50 + b"\xff\n")
    read = []
    with pytest.raises(DataError, match=r"data.txt:51: expected UTF-8 text, found byte 0xff"):
        for record in iter_records(path):
            read.append(record)  # noqa: PERF402 - what was read before the error counts
    assert len(read) == 50


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".conll", ".json"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_recognized(tmp_path: Path, suffix: str, encoding: str) -> None:
    path = tmp_path / f"data{suffix}"
    path.write_bytes("text,label\nhello,a\n".encode(encoding))
    with pytest.raises(DataError) as caught:
        read_records(path)
    assert str(caught.value) == (
        f"{path}: expected UTF-8 text, found UTF-16; convert it with: iconv -f utf-16 -t utf-8"
    )


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".tsv", ".json", ".conll"])
def test_a_small_archive_of_much_data_needs_little_memory(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of gzip that expands to a gigabyte took 3.7 GB. Data and bounds are a sixteenth of those here."""
    monkeypatch.setattr(open_text, "_MIN_EXPANDED_BYTES", 4 * MEGABYTE)
    monkeypatch.setattr(open_text, "MAX_LINE_CHARACTERS", 2 * MEGABYTE)
    path = tmp_path / f"data{suffix}.gz"
    path.write_bytes(gzip.compress((b"text\n" if suffix in (".csv", ".tsv") else b"") + b"a" * 64 * MEGABYTE, 6))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"expected (data that expands to|lines of) at most"):
            read_records(path)
        assert tracemalloc.get_traced_memory()[1] < 20 * MEGABYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".tsv"])
def test_an_archive_of_too_many_lines_ends_the_reading(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of the file: as one of a line, it came again and again, without end."""
    monkeypatch.setattr(open_text, "_MIN_EXPANDED_BYTES", 2 * MEGABYTE)
    path = tmp_path / f"data{suffix}.gz"
    path.write_bytes(gzip.compress(b"text\n" * MEGABYTE))
    message = f"^{re.escape(str(path))}: cannot be read: expected data that expands to at most 2,097,152 bytes"
    with pytest.raises(DataError, match=message):
        for row, _ in zip(iter_rows(path), range(MEGABYTE), strict=False):
            assert suffix == ".jsonl" or isinstance(row, Record)


def test_text_that_compresses_well_is_read(tmp_path: Path) -> None:
    path = tmp_path / "data.txt.gz"
    path.write_bytes(gzip.compress(b"the same words again and again\n" * 200_000))
    assert len(read_records(path)) == 200_000


def test_lines_without_end_are_refused_and_read_over(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("one\n" + "x" * (open_text.MAX_LINE_CHARACTERS + MEGABYTE) + "\nthree\n")
    first, second, third = iter_rows(path)
    assert isinstance(second, DataError)
    assert str(second).startswith(f"{path}:2: expected lines of at most 33,554,432 characters")
    assert [row.text() for row in (first, third) if isinstance(row, Record)] == ["one", "three"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("x" * 5000 + ".txt", "cannot be read: File name too long"), ("a\0b.txt", "expected a file's name, found one")],
    ids=["long", "NUL"],
)
def test_names_that_no_file_can_have(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_records(name)


ROWS: dict[str, tuple[str, list[str | int]]] = {
    ".txt": ("one\n\n \t\ntwo\n", ["one", "", " \t", "two"]),
    ".jsonl": ('{"text": "one"}\n\nnot JSON\n{"text": ""}\n[]\n', ["one", 3, "", 5]),
    ".csv": ('text,n\none,1\n\n"",2\n,\ntwo\nthree,"4"5\nfour,6\n', ["one", "", "", "", 6, 7, "four"]),
    ".tsv": ("text\tn\none\t1\n\t2\n\ntwo\n", ["one", "", "", 5]),
}
"""A file of each format, and its texts or the lines of its errors."""


@pytest.mark.parametrize("suffix", ROWS)
def test_every_row_is_an_input_for_prediction(tmp_path: Path, suffix: str) -> None:
    content, expected = ROWS[suffix]
    path = tmp_path / f"data{suffix}"
    path.write_text(content)
    found = [row.text() if isinstance(row, Record) else str(row) for row in iter_rows(path)]
    assert len(found) == len(expected)
    for text, wanted in zip(found, expected, strict=True):
        assert text == wanted if isinstance(wanted, str) else text.startswith(f"{path}:{wanted}: ")


def test_a_blank_line_of_a_file_without_header_is_an_empty_text(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("\n1,one\n\n2,two\n")
    rows = iter_rows(path, {"text": "1"})
    assert [row.text() for row in rows if isinstance(row, Record)] == ["", "one", "", "two"]


def test_examples_have_no_blank_rows(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("text,label\none,a\n\n,\ntwo,b\n")
    assert [record.line for record in read_records(path)] == [2, 5]
