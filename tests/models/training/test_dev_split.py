"""A dev set that is held out of the training file."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bert_models.training.dev_split import split_rows
from bert_models.training.infer_task import label_reader
from bert_runtime.errors import DataError
from bert_runtime.records import Record

SINGLE = label_reader("text-classification")
MULTI = label_reader("text-classification", "multi_label")
TAGS = label_reader("token-classification")


def records(fields: list[dict[str, Any]]) -> list[Record]:
    return [Record(row, Path("train.jsonl"), number) for number, row in enumerate(fields, start=1)]


def labelled(counts: dict[str, int]) -> list[Record]:
    """Return rows with different texts: as many of each label as asked for."""
    return records([{"text": f"{label} {i}", "label": label} for label, count in counts.items() for i in range(count)])


def dev_labels(rows: list[Record], dev: list[int]) -> Counter[str]:
    return Counter(rows[index].label() for index in dev)


@pytest.mark.parametrize("seed", range(8))
def test_every_label_has_its_share_to_a_row(seed: int) -> None:
    counts = {"a": 700, "b": 204, "c": 90, "d": 6}
    rows = labelled(counts)
    train, dev = split_rows(rows, None, seed, SINGLE)
    assert sorted(train + dev) == list(range(1000))
    assert (train, dev) == (sorted(train), sorted(dev))
    assert len(dev) == 100
    found = dev_labels(rows, dev)
    assert all(abs(found[label] - count / 10) < 1 for label, count in counts.items())


def test_seed_decides_the_rows() -> None:
    rows = labelled({"a": 60, "b": 60})
    first, again, other = (split_rows(rows, None, seed, SINGLE)[1] for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize(
    ("total", "fraction", "expected"),
    [(4, None, 2), (24, None, 10), (100, None, 10), (5_000, None, 500), (30_000, None, 2_000), (30_000, 0.2, 6_000)],
)
def test_size_of_the_dev_set(total: int, fraction: float | None, expected: int) -> None:
    train, dev = split_rows(labelled({"a": total}), fraction, 0)
    assert (len(train), len(dev)) == (total - expected, expected)


@pytest.mark.parametrize("seed", range(5))
def test_every_label_is_left_to_train_on(seed: int) -> None:
    """Rare labels, labels of multi-label rows and tags."""
    rows = labelled({"a": 30, "b": 30} | {f"rare {i}": 1 for i in range(40)})
    _, dev = split_rows(rows, 0.3, seed, SINGLE)
    assert set(dev_labels(rows, dev)) == {"a", "b"}
    rows = records([{"text": f"text {i}", "labels": ["x", f"n{i // 2}"]} for i in range(60)])
    train, dev = split_rows(rows, 0.3, seed, MULTI)
    assert dev
    assert {label for i in dev for label in rows[i].labels()} <= {label for i in train for label in rows[i].labels()}
    rows = records([{"tokens": ["on", str(i)], "tags": ["O", f"B-{i // 3}"]} for i in range(60)])
    train, dev = split_rows(rows, 0.3, seed, TAGS)
    assert dev
    assert {tag for i in dev for tag in rows[i].tags()} <= {tag for i in train for tag in rows[i].tags()}


@pytest.mark.parametrize("field", ["context", "text"])
def test_contexts_and_texts_are_never_on_both_sides(field: str) -> None:
    """Five questions about each of 40 contexts, in turns."""
    rows = records([{field: f"context {i % 40}", "question": f"question {i}"} for i in range(200)])
    train, dev = split_rows(rows, None, 0)
    assert len(dev) == 20
    assert not {rows[i].fields[field] for i in train} & {rows[i].fields[field] for i in dev}


def test_a_pair_is_on_one_side_in_either_order() -> None:
    pairs = [(f"a {i}", f"b {i}") for i in range(200)]
    rows = records([{"text": x, "text_pair": y, "score": 1} for pair in pairs for x, y in (pair, pair[::-1])])
    train, dev = split_rows(rows, None, 0)
    assert len(dev) == 40
    texts = [{rows[i].fields[name] for i in side for name in ("text", "text_pair")} for side in (train, dev)]
    assert not texts[0] & texts[1]


@pytest.mark.parametrize(
    ("name", "value"), [("context", "web"), ("tokens", 2), ("query", "cards"), ("context", "session {i}")]
)
def test_columns_that_are_no_text_do_not_group(name: str, value: Any) -> None:
    """A text is never on both sides, and all others may be, whatever else is said of them."""
    rows = records(
        [{"text": f"text {i % 40}", "label": "a", name: str(value).format(i=i) if i else value} for i in range(200)]
    )
    train, dev = split_rows(rows, None, 0)
    assert len(dev) == 20
    assert not {rows[i].fields["text"] for i in train} & {rows[i].fields["text"] for i in dev}


def test_rare_labels_are_held_out_where_nothing_is_trained() -> None:
    rows = labelled({"a": 100} | {f"rare {i}": 1 for i in range(100)})
    train, dev = split_rows(rows, 0.5, 0, SINGLE, keep_labels=False)
    assert (len(train), len(dev)) == (100, 100)
    assert dev_labels(rows, dev)["a"] == 50


def test_large_contexts_are_held_out_whole() -> None:
    """The smaller one, where a tenth of the rows is less than any."""
    rows = records([{"context": "long" if i < 20 else "short", "question": str(i)} for i in range(30)])
    assert split_rows(rows, None, 0)[1] == list(range(20, 30))


@pytest.mark.parametrize(
    "rows",
    [
        labelled({"a": 1, "b": 1}),
        labelled({"a": 1}),
        records([{"text": "same", "label": label} for label in ("a", "b", "a")]),
    ],
    ids=["labels of one row", "one row", "one text"],
)
def test_files_that_cannot_be_divided_are_refused(rows: list[Record]) -> None:
    with pytest.raises(DataError, match=r"^train\.jsonl: no dev set can be held out .* give a file with --dev$"):
        split_rows(rows, None, 0, SINGLE)
