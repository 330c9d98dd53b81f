"""Opening of data files as text, with errors that name the file and the line, and bounds for hostile files."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import cast

from bert_runtime.errors import DataError

__all__ = ["MAX_LINE_CHARACTERS", "Utf8Text", "open_text"]

MAX_LINE_CHARACTERS = 2**25
"""Longest line, and longest field of a CSV file: three times the longest text that has been tried. A judgement."""

_MAX_EXPANSION = 100
"""Largest size of compressed data, as a multiple of the file's; that of text is 3 to 5, of logs up to 30."""

_MIN_EXPANDED_BYTES = 2**26
"""Size that any compressed file may expand to."""

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Utf8Text(TextIOWrapper):
    """A stream of UTF-8 text whose lines raise a `DataError` where they are something else, and can be read on.

    Lines keep their ends, of any system. A byte order mark is dropped.

    Args:
        raw: the stream of bytes.
        name: the file's name in errors.
    """

    def __init__(self, raw: BufferedReader, name: str) -> None:
        # A strict decoder would fail at the start of a block of many lines, and could not go on behind the error.
        super().__init__(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")
        self.line_number = 0
        """Number of the line that was read last, from 1; 0 before the first."""
        self._name = name

    def __next__(self) -> str:  # type: ignore[override] # typeshed has the base class's bytes
        if self.line_number == 0:
            self._refuse_utf16()
        line = self.readline(MAX_LINE_CHARACTERS)
        if not line:
            raise StopIteration
        self.line_number += 1
        if len(line) == MAX_LINE_CHARACTERS and not line.endswith(("\n", "\r")):
            while line and not line.endswith(("\n", "\r")):
                line = self.readline(_MIN_EXPANDED_BYTES // 64)
            raise DataError(
                f"{self._name}:{self.line_number}: expected lines of at most {MAX_LINE_CHARACTERS:,} characters, found "
                "a longer one"
            )
        self._refuse_other_bytes(line, self.line_number)
        return line

    def read_all(self) -> str:
        """Return the whole text."""
        self._refuse_utf16()
        text = self.read()
        self._refuse_other_bytes(text, 1)
        return text

    def _refuse_utf16(self) -> None:
        start = cast(BufferedReader, self.buffer).peek(64)[:64]
        low, high = start[::2], start[1::2]
        without_mark = len(start) >= 4 and any(
            not any(part) and all(other) for part, other in ((low, high), (high, low))
        )
        if start.startswith(_UTF16_MARKS) or without_mark:
            raise DataError(
                f"{self._name}: expected UTF-8 text, found UTF-16; convert it with: iconv -f utf-16 -t utf-8"
            )

    def _refuse_other_bytes(self, text: str, first_line: int) -> None:
        """Raise `DataError` where the decoder has escaped a byte; `first_line` is the number of the first line."""
        if text.isascii():
            return
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            line = first_line + text.count("\n", 0, error.start)
            raise DataError(
                f"{self._name}:{line}: expected UTF-8 text, found byte 0x{ord(text[error.start]) - 0xDC00:02x}; "
                "convert the file with: iconv -f latin1 -t utf-8"
            ) from None


class _BoundedGzip(gzip.GzipFile):
    """A compressed file that expands to at most `limit` bytes: a megabyte of it may hold a gigabyte of one letter."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._limit = max(_MIN_EXPANDED_BYTES, _MAX_EXPANSION * path.stat().st_size)

    def read(self, size: int | None = -1) -> bytes:
        return self._bounded(super().read(self._limit + 1 if size is None or size < 0 else size))

    def read1(self, size: int = -1) -> bytes:
        return self._bounded(super().read1(size))

    def _bounded(self, data: bytes) -> bytes:
        if self.tell() > self._limit:
            # Like damaged data, and no `DataError`: readers take that for one bad line, and would read on for ever.
            raise OSError(
                f"expected data that expands to at most {self._limit:,} bytes, found more, over {_MAX_EXPANSION} times "
                "its size; if that is right, decompress the file with gunzip"
            )
        return data


@contextmanager
def open_text(path: Path) -> Iterator[Utf8Text]:
    """Open a file as UTF-8 text, and decompress it if its name ends in `.gz`.

    Raises:
        DataError: the file is missing, unreadable or not UTF-8, or its compressed data is damaged or expands to more
            than 100 times its size; also while reading.
    """
    if "\0" in str(path):
        raise DataError(f"{str(path)!r}: expected a file's name, found one with the character NUL")
    try:
        with (
            _BoundedGzip(path) if path.suffix == ".gz" else path.open("rb") as raw,
            Utf8Text(cast(BufferedReader, raw), str(path)) as stream,
        ):
            yield stream
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
