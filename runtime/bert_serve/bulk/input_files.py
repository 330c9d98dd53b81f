"""The files of a bulk run: what patterns match, the name of each file's answers, and whether it has changed."""

import glob
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Self

import numpy as np

from bert_runtime import DataError
from bert_runtime.records import FORMATS

__all__ = ["PARQUET", "FileState", "InputFile", "check_local", "find_inputs"]

PARQUET = ".parquet"

_TEXT_FORMATS = tuple(suffix for suffix in FORMATS if suffix in (".jsonl", ".csv", ".tsv", ".txt"))


class InputFile(NamedTuple):
    """A file of texts."""

    path: Path
    """Its absolute path."""
    name: str
    """Its path below the folder that the pattern starts with, such as `2024/a.parquet`."""

    @property
    def stem(self) -> str:
        """The name without its extension, for the files of answers."""
        name = self.name.removesuffix(".gz")
        return str(PurePosixPath(name).with_suffix(""))


class FileState(NamedTuple):
    """Size and time of a file: what differs once it is changed or replaced."""

    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the state of a file; raise `DataError` where there is none."""
        try:
            found = path.stat()
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
        return cls(found.st_size, found.st_mtime_ns)

    def __str__(self) -> str:
        return f"{self.size_bytes:,} bytes of {np.datetime64(self.modified_ns, 'ns')}Z"


def find_inputs(patterns: Sequence[str]) -> list[InputFile]:
    """Return the files that patterns match, in order of their names; hidden files are left out.

    Args:
        patterns: paths with `*`, `?`, `[…]` and, for folders at any depth, `**`. A folder stands for all Parquet files
            in it.

    Raises:
        DataError: a pattern is an address or matches no file, a file's format is unknown, or the answers of two files
            would have one name.
    """
    found: dict[Path, InputFile] = {}
    for pattern in patterns:
        check_local(pattern)
        if Path(pattern).is_dir():
            pattern = str(Path(glob.escape(pattern), f"*{PARQUET}"))
        base = _fixed_folder(pattern)
        matches = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 # Path.glob takes no absolute patterns
        paths = [Path(path) for path in matches if Path(path).is_file()]
        if not paths:
            raise DataError(f"{pattern}: expected files that match, found none")
        for path in paths:
            # Files that are links keep their names: several may lead to equal contents, as in the hub's cache.
            found.setdefault(
                path.parent.resolve() / path.name, InputFile(path.absolute(), path.relative_to(base).as_posix())
            )
    inputs = sorted(found.values(), key=lambda file: file.name)
    _check_formats(inputs)
    _check_names(inputs)
    return inputs


def check_local(path: str | Path) -> None:
    """Raise `DataError` for the address of an object store, which would be read as a folder called `s3:`."""
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:/", str(path)):
        raise DataError(f"{path}: expected the path of a file or folder, found an address; mount it, or copy its files")


def _fixed_folder(pattern: str) -> Path:
    """Return the folder that a pattern starts with: its parts before the first that has a wildcard."""
    folder = Path()
    for part in Path(pattern).parts[:-1]:
        if glob.has_magic(part):
            break
        folder /= part
    return folder


def _check_formats(inputs: Sequence[InputFile]) -> None:
    for file in inputs:
        if not file.name.removesuffix(".gz").endswith((PARQUET, *_TEXT_FORMATS)) or file.name.endswith(".parquet.gz"):
            raise DataError(
                f"{file.path}: expected a file that ends in {PARQUET}, or in {', '.join(_TEXT_FORMATS)} with or "
                "without .gz; choose such files with the pattern"
            )


def _check_names(inputs: Sequence[InputFile]) -> None:
    for stem, count in Counter(file.stem for file in inputs).items():
        if count > 1:
            same = ", ".join(str(file.path) for file in inputs if file.stem == stem)
            raise DataError(f"expected input files of different names, found {same}; answer them into separate folders")
