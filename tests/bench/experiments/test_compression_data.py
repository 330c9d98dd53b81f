"""Rows that compression is measured on: no text of the search or of the gate is trained on."""

import gzip
import json
from pathlib import Path

import pytest

from bert_bench.experiments import compression_data
from bert_bench.experiments.compression_data import task_files, unlabelled_file

_WORDS = ("red", "green", "blue", "grey", "pink", "gold", "teal", "plum", "rust", "jade")


def _texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_tenth_of_the_training_rows_is_for_the_search_and_the_dev_file_for_the_gate(tmp_path: Path) -> None:
    source = tmp_path / "data/rte"
    source.mkdir(parents=True)
    rows = [f"{n}\tpremise {n}\thypothesis\t{'not_' * (n % 2)}entailment" for n in range(200)]
    (source / "train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + "\n".join(rows))
    (source / "val.tsv").write_text("0\tanother\thypothesis\tentailment")
    files = task_files("rte", tmp_path / "data", tmp_path / "work")
    train, dev = _texts(files.train), _texts(files.dev)
    assert (len(train), len(dev)) == (180, 20)
    assert set(train).isdisjoint(dev)
    assert _texts(files.test) == ["another"]
    files.train.write_text("kept")
    assert task_files("rte", tmp_path / "data", tmp_path / "work").train.read_text() == "kept"


def test_inputs_of_another_data_set_have_no_labels(tmp_path: Path) -> None:
    source = tmp_path / "data/banking77"
    source.mkdir(parents=True)
    (source / "train.csv").write_text("text,category\nmy card,lost_card\nhello,greeting\n")
    (folder := tmp_path / "work").mkdir()
    path = unlabelled_file("banking77", tmp_path / "data", folder)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"text": "my card"}, {"text": "hello"}]


def test_phrases_of_held_sentences_are_not_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "data/sst2"
    source.mkdir(parents=True)
    sentences = [f"a {word} film" for word in _WORDS]
    (source / "stsa.binary.train").write_text("".join(f"{n % 2} {text}\n" for n, text in enumerate(sentences)))
    (source / "dev.tsv").write_text("sentence\tlabel\nthe end\t1\n")
    phrases = [*sentences, *(f"{word.title()}  film" for word in _WORDS), "film", "a thriller"]
    with gzip.open(source / "train.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("sentence\tlabel\n" + "".join(f"{text}\t1\n" for text in phrases))
    monkeypatch.setitem(compression_data._HELD_ROWS, "sst2", 4)
    files = task_files("sst2", tmp_path / "data", tmp_path / "work")
    train, dev, test = (_texts(path) for path in (files.train, files.dev, files.test))
    assert (len(train), len(dev), len(test)) == (13, 2, 3)
    held = {text.split()[1] for text in (*dev, *test[1:])}
    assert len(held) == 4
    assert not any(word in text.lower() for text in train for word in held)
    assert "film" not in train
    assert "a thriller" in train


def test_half_of_the_questions_held_out_join_those_of_the_dev_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "data/trec"
    source.mkdir(parents=True)
    questions = [f"{('NUM:dist', 'HUM:ind')[n % 2]} Who or how far is caf\u00e9 {n} ?\n" for n in range(20)]
    (source / "TREC.train").write_text("".join(questions), encoding="iso-8859-1")
    (source / "TREC.test").write_text("LOC:city What county is Modesto in ?\n")
    monkeypatch.setitem(compression_data._HELD_ROWS, "trec", 4)
    files = task_files("trec", tmp_path / "data", tmp_path / "work")
    train, dev, test = (_texts(path) for path in (files.train, files.dev, files.test))
    assert (len(train), len(dev), len(test)) == (16, 2, 3)
    assert test[0] == "What county is Modesto in ?"
    assert {*train, *dev, *test[1:]} == {question.split(" ", 1)[1].strip() for question in questions}
