"""Decoding of a linear-chain CRF, compared with enumerating every label sequence."""

import re
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bert_runtime.crf import FORBIDDEN, bio_transitions, is_bio, marginals, viterbi

SIZES = [(1, 1), (1, 3), (2, 2), (4, 3), (5, 4), (6, 1)]
BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")

Scores = NDArray[np.floating[Any]]


def random_scores(length: int, labels: int, seed: int = 0) -> tuple[Scores, Scores]:
    generator = np.random.default_rng(seed)
    return 2 * generator.standard_normal((length, labels)), 2 * generator.standard_normal((labels + 2, labels))


def every_sequence(emissions: Scores, transitions: Scores) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return all label sequences [L^T, T] and their scores [L^T], summed term by term."""
    length, labels = emissions.shape
    sequences = list(product(range(labels), repeat=length))
    scores = [
        float(transitions[labels, path[0]])
        + sum(float(emissions[position, label]) for position, label in enumerate(path))
        + sum(float(transitions[pair]) for pair in pairwise(path))
        + float(transitions[labels + 1, path[-1]])
        for path in sequences
    ]
    return np.array(sequences), np.array(scores)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("length", "labels"), SIZES)
def test_viterbi_finds_the_sequence_with_the_highest_score(length: int, labels: int, seed: int) -> None:
    emissions, transitions = random_scores(length, labels, seed)
    sequences, scores = every_sequence(emissions, transitions)
    found = viterbi(emissions, transitions)
    assert found.dtype == np.int64
    assert found.tolist() == sequences[scores.argmax()].tolist()


@pytest.mark.parametrize("seed", range(20))
def test_ties_go_to_the_lower_label_decided_from_the_end(seed: int) -> None:
    generator = np.random.default_rng(seed)
    emissions, transitions = generator.integers(0, 2, (4, 3)) * 1.0, generator.integers(0, 2, (5, 3)) * 1.0
    sequences, scores = every_sequence(emissions, transitions)
    best = sequences[scores == scores.max()].tolist()
    assert viterbi(emissions, transitions).tolist() == min(best, key=lambda path: path[::-1])


def test_equal_scores_give_the_first_label() -> None:
    assert viterbi(np.zeros((3, 4)), np.zeros((6, 4))).tolist() == [0, 0, 0]


def test_zero_transitions_decode_each_position_alone() -> None:
    emissions, transitions = random_scores(50, 7)
    assert viterbi(emissions, 0 * transitions).tolist() == emissions.argmax(axis=1).tolist()
    shares = np.exp(emissions) / np.exp(emissions).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(marginals(emissions, 0 * transitions), shares, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("length", "labels"), SIZES)
def test_marginals_equal_the_sums_over_all_sequences(length: int, labels: int, seed: int) -> None:
    emissions, transitions = random_scores(length, labels, seed)
    sequences, scores = every_sequence(emissions, transitions)
    weights = np.exp(scores) / np.exp(scores).sum()
    expected = [[weights[sequences[:, t] == label].sum() for label in range(labels)] for t in range(length)]
    found = marginals(emissions, transitions)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)


def test_empty_sequence() -> None:
    emissions, transitions = random_scores(0, 3)
    assert viterbi(emissions, transitions).shape == (0,)
    assert viterbi(emissions, transitions).dtype == np.int64
    assert marginals(emissions, transitions).shape == (0, 3)


def test_long_float32_sequences_lose_no_precision() -> None:
    emissions, transitions = (10 * scores.astype(np.float32) for scores in random_scores(2000, 5))
    wide = emissions.astype(np.float64), transitions.astype(np.float64)
    found = marginals(emissions, transitions)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, marginals(*wide), atol=1e-7)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    assert viterbi(emissions, transitions).tolist() == viterbi(*wide).tolist()


def test_bio_transitions_of_one_type() -> None:
    given = np.arange(15, dtype=np.float32).reshape(5, 3)
    before = given.copy()
    found = bio_transitions(("O", "B-X", "I-X"), given)
    expected = given.copy()
    expected[0, 2] = expected[3, 2] = FORBIDDEN  # after O, and at the start
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(given, before)
    np.testing.assert_array_equal(bio_transitions(("O", "B-X", "I-X"), found), found)


def test_bio_forbids_inside_labels_after_another_type() -> None:
    scores = bio_transitions(BIO)
    forbidden = {(BIO[before], BIO[after]) for before, after in zip(*np.nonzero(scores[:-2]), strict=True)}
    assert forbidden == {
        *(("O", inside) for inside in ("I-PER", "I-LOC")),
        *((f"{kind}-PER", "I-LOC") for kind in "BI"),
        *((f"{kind}-LOC", "I-PER") for kind in "BI"),
    }
    assert scores[-2].tolist() == [0, 0, FORBIDDEN, 0, FORBIDDEN]
    assert not scores[-1].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(20))
def test_constrained_sequences_are_valid_bio_for_any_scores(seed: int, dtype: type[np.floating[Any]]) -> None:
    emissions, transitions = (20 * scores.astype(dtype) for scores in random_scores(60, len(BIO), seed))
    emissions[:, [2, 4]] += 30  # inside labels score best everywhere
    constrained = bio_transitions(BIO, transitions)
    assert breaks_bio(viterbi(emissions, transitions))
    assert not breaks_bio(viterbi(emissions, constrained))
    probabilities = marginals(emissions, constrained)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert not probabilities[0, [2, 4]].any()


def breaks_bio(path: NDArray[np.int64]) -> bool:
    names = ["O", *(BIO[label] for label in path)]
    return any(after.startswith("I-") and before not in (after, f"B-{after[2:]}") for before, after in pairwise(names))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (BIO, True),
        (("I-X", "O", "B-X"), True),
        (("O", "B-X"), True),
        (("B-X-Y", "I-X-Y"), True),
        (("O", "I-X"), False),
        (("O", "B-X", "I-Y"), False),
        (("NOUN", "VERB"), False),
        (("O", "B-X", "I-X", "E-X", "S-X"), False),
        (("O", "B", "I"), False),
        (("O", "B-", "I-"), False),
    ],
)
def test_is_bio(labels: tuple[str, ...], expected: bool) -> None:
    assert is_bio(labels) is expected


def test_labels_that_are_not_bio_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"expected BIO labels .*, found 'S-X', 'NOUN', 'I-Y'$"):
        bio_transitions(("O", "S-X", "B-X", "NOUN", "I-X", "I-Y"))


def test_transitions_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("expected transitions [5, 3] for 3 labels, found [3, 3]")):
        bio_transitions(("O", "B-X", "I-X"), np.zeros((3, 3)))
