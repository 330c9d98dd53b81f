"""Similarities of all pairs, and exact search in blocks."""

import numpy as np
import pytest

from bert_runtime.similarity import SIMILARITIES, nearest_neighbors, similarity_matrix

X = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(40, 5)).astype(np.float32)


def pair(x: np.ndarray, y: np.ndarray, name: str) -> float:
    """The definition of each similarity for one pair of vectors."""
    values = {
        "cosine": x @ y / np.linalg.norm(x) / np.linalg.norm(y),
        "dot": x @ y,
        "euclidean": -np.sqrt(((x - y) ** 2).sum()),
        "manhattan": -np.abs(x - y).sum(),
    }
    return float(values[name])


@pytest.mark.parametrize("name", SIMILARITIES)
def test_similarities_of_all_pairs(name: str) -> None:
    expected = [[pair(x, y, name) for y in Y] for x in X]
    assert similarity_matrix(X, Y, name) == pytest.approx(np.array(expected), abs=1e-5)
    assert similarity_matrix(X[:0], Y, name).shape == (0, 40)
    assert similarity_matrix(X, Y[:0], name).shape == (7, 0)


def test_a_zero_vector_is_like_no_other() -> None:
    assert similarity_matrix(np.zeros((1, 5), np.float32), Y).tolist() == [[0.0] * 40]


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("block", [1, 7, 40, 99])
def test_search_in_blocks_is_a_search_of_all(name: str, block: int) -> None:
    scores = similarity_matrix(X, Y, name)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :9]
    found = nearest_neighbors(X, (Y[start : start + block] for start in range(0, 40, block)), 9, name)
    assert found.indices.tolist() == expected.tolist()
    assert found.scores == pytest.approx(np.take_along_axis(scores, expected, axis=1), abs=1e-6)


def test_fewer_vectors_than_asked_for() -> None:
    assert nearest_neighbors(X, [Y[:2], Y[2:3]], 9).indices.shape == (7, 3)
    assert nearest_neighbors(X, [], 9).indices.shape == (7, 0)
    assert nearest_neighbors(X[:0], [Y], 9).indices.shape[0] == 0


def test_equally_near_vectors_keep_their_order() -> None:
    same = np.repeat(Y[:1], 6, axis=0)
    assert nearest_neighbors(X[:1], [same[:3], same[3:]], 4).indices.tolist() == [[0, 1, 2, 3]]


def test_of_many_equally_near_vectors_the_first_are_found() -> None:
    """More than are kept of a block, with better ones and worse ones among them; of whole numbers, which are exact."""
    ones = np.ones((1, 4), np.float32)
    vectors = np.repeat(ones, 1000, axis=0)
    assert nearest_neighbors(ones, [vectors], 5, "dot").indices.tolist() == [[0, 1, 2, 3, 4]]
    vectors[[0, 1, 700]] = [[-1] * 4, [0] * 4, [2] * 4]
    assert nearest_neighbors(ones, [vectors], 4, "dot").indices.tolist() == [[700, 2, 3, 4]]


def test_many_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """More queries than are compared at a time."""
    expected = nearest_neighbors(Y, [X], 3)
    monkeypatch.setattr("bert_runtime.similarity._QUERY_BLOCK", 16)
    assert nearest_neighbors(Y, [X], 3).indices.tolist() == expected.indices.tolist()
