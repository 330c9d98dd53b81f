"""Documents from datasets of the Hugging Face `datasets` library."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_models.corpus import HuggingFaceDataset, open_corpus
from bert_runtime.errors import DataError, MissingExtraError

from ..corpus_helpers import documents, write


class FakeLibrary:
    """Replaces `datasets`, which would ask the hub."""

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


def test_dataset_folder_is_streamed(tmp_path: Path, library: FakeLibrary) -> None:
    (tmp_path / "train.parquet").write_bytes(b"1")
    corpus = open_corpus([tmp_path])
    assert documents(corpus) == [["one", "two"], ["three"]]
    assert library.calls == [(str(tmp_path), None, {"split": "train", "revision": None, "streaming": True})]
    before = corpus.fingerprint()
    (tmp_path / "train.parquet").write_bytes(b"2")
    assert corpus.fingerprint() != before


def test_folder_of_save_to_disk_is_loaded_with_load_from_disk(tmp_path: Path, library: FakeLibrary) -> None:
    (tmp_path / "dataset_dict.json").write_text("{}")
    assert documents(open_corpus([tmp_path])) == [["one", "two"], ["three"]]
    assert library.calls == [(str(tmp_path),)]


def test_hub_dataset_is_pinned_to_its_commit(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0" * 40

    class Api:
        def dataset_info(self, name: str, revision: str | None) -> SimpleNamespace:
            return SimpleNamespace(sha=commit)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=Api))  # type: ignore[arg-type]
    corpus = open_corpus(["dataset:org/name/en@main"])
    assert documents(corpus) == [["one", "two"], ["three"]]
    assert library.calls == [("org/name", "en", {"split": "train", "revision": commit, "streaming": True})]
    before = corpus.fingerprint()
    commit = "1" * 40  # as after a push
    assert corpus.fingerprint() == before
    assert open_corpus(["dataset:org/name/en@main"]).fingerprint() != before


def test_named_commit_needs_no_answer_from_the_hub(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConnectionError("offline")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=refuse))  # type: ignore[arg-type]
    with pytest.raises(
        DataError, match=r"org/name: expected .* found no such folder, and the hub did not answer: offline"
    ):
        open_corpus(["dataset:org/name"]).fingerprint()
    corpus = open_corpus([f"dataset:org/name@{'a' * 40}"])
    assert documents(corpus) == [["one", "two"], ["three"]]
    assert len(corpus.fingerprint()) == 64


def test_dataset_errors_name_row_and_split(
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
    with pytest.raises(MissingExtraError, match=r"pip install .*\[train\]"):
        list(open_corpus([tmp_path]).sentences())


def test_real_library_reads_column_and_split_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    folder.mkdir()
    for split, words in (("train", "one two"), ("test", "three\\nfour")):
        write(folder / f"{split}.jsonl", f'{{"body": "{words}", "id": 1}}\n{{"body": "five {split}", "id": 2}}\n')
    corpus = open_corpus([folder], field="body", split="test")
    assert [(sentence.text, sentence.starts_document) for sentence in corpus.sentences()] == [
        ("three", True), ("four", False), ("five test", True),
    ]  # fmt: skip
    assert corpus.fingerprint() != open_corpus([folder], field="body").fingerprint()
    with pytest.raises(DataError, match="text"):
        list(open_corpus([folder]).sentences())
