"""Fixtures for bulk work: folders of texts, and the `batch` command."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from bert_export.cli import main
from bert_export.cli.batch import batch

WORDS = ("hello", "there", "where", "is", "my", "card", "please", "thanks", "bye", "train", "late", "bus", "book")


def text(number: int) -> str:
    """Return the text of a row, of 1 to 8 words."""
    return " ".join(WORDS[(number * 7 + step * step) % len(WORDS)] for step in range(1 + number % 8))


def write_parquet(path: Path, first: int, rows: int, **options: Any) -> None:
    """Write `rows` texts with consecutive ids; the id is the number of the text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = list(range(first, first + rows))
    pq.write_table(pa.table({"id": ids, "text": list(map(text, ids))}), path, **options)


def read_answers(folder: Path) -> dict[str, pa.Table]:
    """Return the files of answers by name."""
    return {path.relative_to(folder).as_posix(): pq.read_table(path) for path in sorted(folder.rglob("[!.]*.parquet"))}


def ids(answers: Mapping[str, pa.Table]) -> list[int]:
    """Return the ids of all answers, in the order of files and rows."""
    return [number for table in answers.values() for number in table["id"].to_pylist()]


def states(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the inode and the time of each file of answers by name."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*.parquet")}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Three Parquet files of 40, 5 and 0 rows, the first in row groups of 7."""
    folder = tmp_path / "texts"
    write_parquet(folder / "a.parquet", 0, 40, row_group_size=7)
    write_parquet(folder / "b.parquet", 40, 5)
    write_parquet(folder / "c.parquet", 45, 0)
    return folder


RunBatch = Callable[..., Result]


@pytest.fixture
def run_batch(monkeypatch: pytest.MonkeyPatch) -> RunBatch:
    """Run `bert-export batch` with arguments; an unhandled exception fails the test."""
    monkeypatch.setitem(main.commands, "batch", batch)  # also where the entry point is not installed

    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(main, ["batch", *map(str, arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run
