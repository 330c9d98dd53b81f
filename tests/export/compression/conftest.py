"""Files of labelled rows."""

from pathlib import Path

import pytest

_LABELS = ("greeting", "farewell", "question")


def _write_rows(folder: Path, word: str, num_rows: int) -> Path:
    path = folder / "rows.csv"
    rows = [f"{word} {i} card,{_LABELS[i % 3]}\n" for i in range(num_rows)]
    path.write_text("text,label\n" + "".join(rows))
    return path


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_rows(tmp_path_factory.mktemp("data"), "hello", 120)


@pytest.fixture(scope="module")
def train_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_rows(tmp_path_factory.mktemp("train"), "money", 60)
