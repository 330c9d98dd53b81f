"""Preparation of a search: copies of rows, and how many tokens candidates may keep."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bert_export.compression.goal import CompressionSettings, Goal
from bert_export.compression.preparation import SearchRequest, augment, kept_percents
from bert_models import load_model, open_checkpoint
from bert_runtime.errors import DataError
from bert_runtime.machine import describe
from bert_runtime.records import Record
from bert_runtime.tasks import Task
from bert_runtime.tokenization import TextTokenizer

from .search_data import read


def test_copies_that_the_task_refuses_are_left_out(
    classifier_checkpoint: Path, labelled: Path, train_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = read(classifier_checkpoint, labelled, train_file)
    copies = [Record({"text": text}, train_file, 1) for text in ("money for a card", "a card of money")]
    monkeypatch.setattr("bert_export.compression.preparation.augmented_rows", lambda *given: copies)

    def refuse(task: Task, tokenizer: TextTokenizer, records: list[Record]) -> list[Record]:
        if records == copies[1:]:
            raise DataError("too many tokens")
        return records

    monkeypatch.setattr("bert_export.compression.preparation.unlabelled_examples", refuse)
    source = open_checkpoint(classifier_checkpoint)
    model, tokenizer = load_model(source, source.task()), source.text_tokenizer(None, None)
    found = augment(data, model, tokenizer, 1, 0, lambda line: None)
    assert list(found.copies) == copies[:1]


def test_tokens_are_pruned_where_the_task_the_encoder_and_the_texts_allow_it(
    classifier_checkpoint: Path, embedding_checkpoint: Path
) -> None:
    lines: list[str] = []
    source, long = open_checkpoint(classifier_checkpoint), [100, 200]
    assert kept_percents(source, source.task(), "auto", long, lines.append) == (100, 70, 50, 30)
    assert kept_percents(source, source.task(), "none", long, lines.append) == (100,)
    assert lines == []
    assert kept_percents(source, source.task(), "auto", [12, 17], lines.append) == (100,)
    assert lines.pop() == "candidates keep all tokens: dev's texts are short, and 97% of their tokens would stay anyway"
    mean = open_checkpoint(embedding_checkpoint)
    assert kept_percents(mean, mean.task(), "auto", long, lines.append) == (100,)
    assert "sentence-embedding with mean pooling reads every token of a text" in lines.pop()


def test_a_search_goes_on_only_with_equal_files_and_cores(
    classifier_checkpoint: Path, labelled: Path, train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(classifier_checkpoint, tmp_path / "checkpoint"))
    request = SearchRequest(
        goal=Goal(speedup=2), settings=CompressionSettings(), checkpoint=folder, output=tmp_path / "small",
        train=train_file, unlabelled=None, dev=labelled, test=None, columns={},
    )  # fmt: skip

    def identity() -> dict[str, Any]:
        return request.identity(open_checkpoint(folder))

    before = identity()
    (folder / "README.md").write_text("of no importance")
    assert identity() == before
    for name in ("config.json", "tokenizer_config.json"):
        values = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
        (folder / name).write_text(json.dumps({**values, "noted": 1}))
        assert identity() != before
        before = identity()
    machine = describe()
    monkeypatch.setattr("bert_export.compression.preparation.describe", lambda: {**machine, "cores": 99})
    assert identity() != before
