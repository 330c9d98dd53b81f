"""Opening of data files, with errors that say what is wrong with the file."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from bert_runtime.errors import DataError

__all__ = ["open_text"]


@contextmanager
def open_text(path: Path) -> Iterator[TextIOWrapper]:
    """Open a file as UTF-8 text, and decompress it if its name ends in `.gz`.

    Raises:
        DataError: the file is missing, unreadable or not UTF-8, or its compressed data is damaged; also while reading.
    """
    try:
        with (
            gzip.open(path) if path.suffix == ".gz" else path.open("rb") as raw,
            TextIOWrapper(raw, encoding="utf-8-sig", newline="") as stream,
        ):
            yield stream
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8 text, found byte 0x{error.object[error.start]:02x}; "
            f"convert it with: iconv -f latin1 -t utf-8"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
