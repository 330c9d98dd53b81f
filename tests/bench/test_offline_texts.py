"""Texts of the offline workloads are read from files, each a workload with a unique name."""

from pathlib import Path

import pytest

from bert_bench.offline_texts import read_offline_texts
from bert_runtime.errors import DataError, InputError


def test_workloads_are_named_after_the_file_stem(tmp_path: Path) -> None:
    for name, text in (("v1.2.txt", "one"), ("v1.3.txt", "two")):
        (tmp_path / name).write_text(f"{text}\n{text}\n")
    assert read_offline_texts(None, [tmp_path / "v1.2.txt", tmp_path / "v1.3.txt"]) == {
        "v1.2": ["one"],
        "v1.3": ["two"],
    }


def test_two_files_with_one_stem_are_an_error(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "dev.txt" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("hello\n")
    with pytest.raises(InputError, match=r"b/dev\.txt: expected a unique file name, found dev twice"):
        read_offline_texts(None, paths)


def test_columns_apply_to_the_files(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("sentence,category\nhello,x\n")
    assert read_offline_texts(None, [tmp_path / "mine.csv"], {"text": "sentence"}) == {"mine": ["hello"]}
    with pytest.raises(DataError, match=r"mine\.csv.*'text'"):
        read_offline_texts(None, [tmp_path / "mine.csv"])
