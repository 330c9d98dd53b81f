"""Files of labelled rows."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.csv"
    labels = ("greeting", "farewell", "question")
    path.write_text("text,label\n" + "".join(f"hello {i} card,{labels[i % 3]}\n" for i in range(120)))
    return path


@pytest.fixture(scope="module")
def train_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("train") / "rows.csv"
    labels = ("greeting", "farewell", "question")
    path.write_text("text,label\n" + "".join(f"money {i} card,{labels[i % 3]}\n" for i in range(60)))
    return path
