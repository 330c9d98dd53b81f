"""Rows of a search: how dev is split, and what is not trained on."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from bert_export.compression.planning import TrainingRows
from bert_models import EncoderConfig, TaskModel, save_model
from bert_models.errors import CompressionError
from bert_runtime import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import TokenClassification

from .search_data import read


def test_dev_is_split_by_label_and_seed(
    classifier_checkpoint: Path, labelled: Path, train_file: Path, tmp_path: Path
) -> None:
    data = read(classifier_checkpoint, labelled, train_file)
    assert (len(data.search), len(data.gate)) == (60, 60)
    assert {item.inputs for item in data.search}.isdisjoint({item.inputs for item in data.gate})
    assert sorted(item.target for item in data.gate) == [0] * 20 + [1] * 20 + [2] * 20
    again, other = (
        read(classifier_checkpoint, labelled, train_file),
        read(classifier_checkpoint, labelled, train_file, seed=1),
    )
    assert data.gate == again.gate != other.gate
    files = data.write(tmp_path)
    assert [len(path.read_text().splitlines()) for path in (files.given, files.dev)] == [60, 60]
    sample = data.write_first(tmp_path, 20).read_text().splitlines()
    assert (
        sample == files.given.read_text().splitlines()[:20] != [json.dumps(dict(row.fields)) for row in data.train[:20]]
    )


def test_rows_with_a_text_of_the_gate_are_not_trained_on(
    classifier_checkpoint: Path, labelled: Path, train_file: Path, tmp_path: Path
) -> None:
    data = read(classifier_checkpoint, labelled, labelled, unlabelled=labelled)
    texts = {item.inputs[0].text for item in data.gate}
    assert (len(data.train), len(data.unlabelled), data.num_left_out) == (60, 60, 120)
    assert texts.isdisjoint(record.fields["text"] for record in (*data.train, *data.unlabelled))
    assert read(classifier_checkpoint, labelled, train_file).num_left_out == 0
    gate = tmp_path / "gate.csv"
    gate.write_text("text,label\n" + "".join(f"{text},greeting\n" for text in texts))
    with pytest.raises(CompressionError, match=r"gate.csv: all rows have texts of .*rows.csv that are set aside"):
        read(classifier_checkpoint, labelled, gate)


def test_either_text_of_a_pair_to_embed_is_not_trained_on(embedding_checkpoint: Path, tmp_path: Path) -> None:
    def write(name: str, pairs: list[tuple[str, str]]) -> Path:
        path = tmp_path / name
        path.write_text("text,text_pair,score\n" + "".join(f"{first},{second},1.5\n" for first, second in pairs))
        return path

    gate = write("gate.csv", [(f"hello {i}", f"hi {i}") for i in range(50)])
    dev = write("dev.csv", [*((f"see {i}", f"bye {i}") for i in range(50)), ("hi 1", "later")])
    train = write("train.csv", [("money", "hello 3"), ("hi 4", "money"), ("money", "card")])
    data = read(embedding_checkpoint, dev, train, test=gate)
    assert [dict(record.fields)["text_pair"] for record in data.train] == ["card"]
    assert (len(data.search), data.num_left_out) == (50, 3)
    copies = [Record({"text": "card", "text_pair": text}, train, 1) for text in ("hi 7", "card")]
    assert data.with_copies(copies).copies == copies[1:]


def test_pairs_to_embed_need_no_scores_to_train_on(embedding_checkpoint: Path, tmp_path: Path) -> None:
    (dev := tmp_path / "dev.csv").write_text(
        "text,text_pair,score\n" + "".join(f"see {i},bye {i},1.5\n" for i in range(120))
    )
    (train := tmp_path / "train.csv").write_text("text,text_pair\nmoney,card\n")
    assert len(read(embedding_checkpoint, dev, train).train) == 1


def test_text_without_labels_that_the_gate_has_as_tokens_is_not_trained_on(
    toy_config: EncoderConfig, toy_vocab: Path, tmp_path: Path
) -> None:
    (tagger := tmp_path / "tagger").mkdir()
    save_model(TaskModel(toy_config, TokenClassification(labels=("O", "B-X"))), tagger, tokenizer_from=toy_vocab)

    def write(name: str, first: int) -> Path:
        rows = ({"tokens": ["hello", str(i)], "tags": ["O", "O"]} for i in range(first, first + 50))
        (path := tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    (texts := tmp_path / "texts.txt").write_text("hello 3\nhello 999\n")
    gate, dev, train = write("gate.jsonl", 0), write("dev.jsonl", 100), write("train.jsonl", 200)
    data = read(tagger, dev, train, test=gate, unlabelled=texts)
    assert [record.fields["text"] for record in data.unlabelled] == ["hello 999"]


def test_unlabelled_rows_that_the_task_cannot_read_are_named(
    classifier_checkpoint: Path, labelled: Path, train_file: Path, tmp_path: Path
) -> None:
    (rows := tmp_path / "more.jsonl").write_text('{"text": "hello"}\n{"text": "\\ud800"}\n')
    with pytest.raises(DataError, match=r"more\.jsonl:2"):
        read(classifier_checkpoint, labelled, train_file, unlabelled=rows)


def test_pairs_that_the_tokenizer_refuses_are_named(embedding_checkpoint: Path, tmp_path: Path) -> None:
    (dev := tmp_path / "dev.csv").write_text(
        "text,text_pair,score\n" + "".join(f"see {i},bye {i},1.5\n" for i in range(120))
    )
    (train := tmp_path / "train.jsonl").write_text('{"text": "money", "text_pair": "\\ud800"}\n')
    with pytest.raises(DataError, match=r"train\.jsonl:1"):
        read(embedding_checkpoint, dev, train)


def test_copies_are_trained_on_but_for_those_with_a_text_of_the_gate(
    classifier_checkpoint: Path, labelled: Path, train_file: Path, tmp_path: Path
) -> None:
    data = read(classifier_checkpoint, labelled, train_file)
    gate_text = data.gate[0].inputs[0].text
    copies = [Record({"text": text}, train_file, 1) for text in ("money for a card", gate_text)]
    more = data.with_copies(copies)
    assert list(more.copies) == copies[:1]
    words = fmean(len(row.fields["text"].split()) for row in data.train)
    assert more.training_rows == TrainingRows(num_given=60, num_copies=1, copy_work=4 / words)
    assert data.training_rows == TrainingRows(num_given=60)
    files = [more.write(tmp_path).given, more.write_first(tmp_path, 61)]
    assert [len(path.read_text().splitlines()) for path in files] == [60, 61]


def test_a_file_for_the_gate_leaves_all_of_dev_to_the_search(
    classifier_checkpoint: Path, labelled: Path, train_file: Path, tmp_path: Path
) -> None:
    test = tmp_path / "test.csv"
    rows = [*(f"hello {i} card" for i in range(3)), *(f"money {i} card" for i in range(5)), *map(str, range(52))]
    test.write_text("text,label\n" + "".join(f"{text},greeting\n" for text in rows))
    data = read(classifier_checkpoint, labelled, train_file, test=test)
    assert (len(data.search), len(data.gate), len(data.train), data.num_left_out) == (117, 60, 55, 8)
    test.write_text("".join(line for line in test.read_text().splitlines(keepends=True)[:40]))
    with pytest.raises(CompressionError, match=r"test.csv: expected at least 50 rows .* found 39$"):
        read(classifier_checkpoint, labelled, train_file, test=test)
    with pytest.raises(CompressionError, match=r"all rows have texts of .*rows.csv that are set aside"):
        read(classifier_checkpoint, labelled, labelled, test=labelled)


def test_a_dev_file_that_cannot_judge_is_refused(classifier_checkpoint: Path, labelled: Path, train_file: Path) -> None:
    with pytest.raises(CompressionError, match=r"expected at least 250 rows, 50 in either part, .* found 120"):
        read(classifier_checkpoint, labelled, train_file, fraction=0.2)
