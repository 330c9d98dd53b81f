"""Preparation of a search: copies of rows, and how many tokens candidates may keep."""

from pathlib import Path

import pytest

from bert_export.compression.preparation import augment, kept_percents
from bert_models import load_model, open_checkpoint
from bert_runtime.errors import DataError
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
