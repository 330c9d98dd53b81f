"""token-classification: BIO constraints and the CRF, compared with an exhaustive search over all label sequences."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_runtime import Model
from bert_runtime.errors import BundleError
from bert_runtime.metrics import entity_spans
from bert_runtime.tasks import TokenClassification, task_from_dict
from bert_runtime.tasks.token_classification import AGGREGATIONS

from ..task_models import (
    LABELS,
    random_model,
    wordpiece,
)
from .tagging_data import TAGS, TEXTS, record


def words_of(model: Model, text: str) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Return the logits of the words' first tokens [W, labels], and the words' character spans."""
    (outputs,) = model.outputs([text])
    (encoding,), (row,) = outputs.encodings, outputs.arrays
    inside = [i for i, sequence in enumerate(encoding.sequence_ids) if sequence == 0]
    words = [list(places) for _, places in groupby(inside, key=lambda i: encoding.word_ids[i])]
    spans = [(encoding.offsets[places[0]][0], encoding.offsets[places[-1]][1]) for places in words]
    return row[[places[0] for places in words]].astype(np.float64), spans


def is_valid_bio(labels: Sequence[str]) -> bool:
    return all(
        not after.startswith("I-") or before in (after, f"B-{after[2:]}") for before, after in pairwise(["O", *labels])
    )


def best_sequence(logits: np.ndarray, transitions: np.ndarray, bio: bool) -> tuple[list[str], list[float]]:
    """Search all label sequences; return the best one, and the marginal probability of each of its labels."""
    sequences = [
        sequence
        for sequence in product(range(5), repeat=len(logits))
        if not bio or is_valid_bio([LABELS[i] for i in sequence])
    ]
    table = np.array(sequences)
    totals = logits[np.arange(len(logits)), table].sum(axis=1)
    totals += transitions[table[:, :-1], table[:, 1:]].sum(axis=1)
    totals += transitions[5, table[:, 0]] + transitions[6, table[:, -1]]
    weights, best = np.exp(totals - totals.max()), table[totals.argmax()]
    shares = [float(weights[table[:, i] == label].sum() / weights.sum()) for i, label in enumerate(best)]
    return [LABELS[label] for label in best], shares


def random_transitions(seed: int) -> np.ndarray:
    return np.round(2 * np.random.default_rng(seed).standard_normal((7, 5)), 3)


SEQUENCES = [
    pytest.param(TAGS, np.zeros((7, 5)), True, id="bio"),
    *(
        pytest.param(
            replace(TAGS, crf=True, bio=bio, transitions=tuple(map(tuple, random_transitions(seed).tolist()))),
            random_transitions(seed),
            bio,
            id=f"crf-{seed}{' bio' if bio else ''}",
        )
        for seed in range(3)
        for bio in (False, True)
    ),
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("aggregation", ["simple", "first", "average", "max"])
@pytest.mark.parametrize(("task", "transitions", "bio"), SEQUENCES)
def test_sequences_equal_exhaustive_search(
    task: TokenClassification, transitions: np.ndarray, bio: bool, aggregation: str, text: str, toy_vocab: Path
) -> None:
    """Words are labelled as a whole, so the result does not depend on the aggregation."""
    model = random_model(replace(task, aggregation=aggregation, bio=bio), toy_vocab, 64, 5)
    logits, spans = words_of(model, text)
    labels, shares = best_sequence(logits, transitions, bio)
    assert not bio or is_valid_bio(labels)
    found = model(text).entities
    expected = entity_spans(labels)
    assert [(entity.label, entity.start, entity.end) for entity in found] == [
        (kind, spans[first][0], spans[after - 1][1]) for kind, first, after in expected
    ]
    if aggregation != "simple":  # which takes the mean over tokens
        means = [np.mean(shares[first:after]) for _, first, after in expected]
        assert [entity.score for entity in found] == pytest.approx(means, abs=1e-5)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("task", "transitions", "bio"), SEQUENCES)
def test_without_aggregation_first_token_has_the_word_label(
    task: TokenClassification, transitions: np.ndarray, bio: bool, text: str, toy_vocab: Path
) -> None:
    model = random_model(replace(task, aggregation="none", bio=bio), toy_vocab, 64, 5)
    logits, spans = words_of(model, text)
    labels, _ = best_sequence(logits, transitions, bio)
    found = {entity.start: entity.label for entity in model(text).entities}
    assert [found.get(start, "O") for start, _ in spans] == labels


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_bio_option_predicts_valid_sequences_only(aggregation: str, toy_vocab: Path) -> None:
    """Also over several windows. Without the option, random logits give invalid sequences."""
    text, model = " ".join(TEXTS * 8), random_model(TAGS, toy_vocab, 16, 5)
    tokens = wordpiece(toy_vocab).encode(text, add_special_tokens=False).offsets

    def labels(of: Model) -> list[str]:
        found = {entity.start: entity.label for entity in of(text).entities}
        return [found.get(start, "O") for start, _ in tokens]

    assert not is_valid_bio(labels(model.with_options(aggregation="none")))
    assert is_valid_bio(labels(model.with_options(aggregation="none", bio=True)))
    unconstrained, constrained = (model.with_options(aggregation=aggregation, bio=bio)(text) for bio in (False, True))
    assert [entity.label for entity in unconstrained.entities] != [entity.label for entity in constrained.entities]


@pytest.mark.parametrize(("task", "transitions", "bio"), SEQUENCES)
def test_score_uses_the_best_label_sequence(
    task: TokenClassification, transitions: np.ndarray, bio: bool, toy_vocab: Path
) -> None:
    model = random_model(replace(task, bio=bio), toy_vocab, 64, 5)
    words = ["hello", "zebra", "\x07", "film", "xyz"]
    logits, _ = words_of(model, " ".join(words))
    labels, _ = best_sequence(logits, transitions, bio)
    gold = [*labels[:2], "O", *labels[2:]]
    example = model.task.example(record(words, gold))
    assert model.task.score(model.outputs(example.inputs), [example])["accuracy"] == 1


def test_crf_transitions_round_trip() -> None:
    task = replace(TAGS, crf=True, transitions=tuple(map(tuple, random_transitions(0).tolist())))
    assert task_from_dict(json.loads(json.dumps(task.to_dict()))) == task


@pytest.mark.parametrize("transitions", [5, [1, 2], [["a"] * 5] * 7, [[0] * 5] * 5], ids=["5", "flat", "text", "short"])
def test_malformed_crf_transitions_are_refused(transitions: Any) -> None:
    with pytest.raises(BundleError, match="token-classification"):
        task_from_dict({**TAGS.to_dict(), "crf": True, "transitions": transitions})
