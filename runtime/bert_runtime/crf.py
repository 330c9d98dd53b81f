"""Decoding a linear-chain conditional random field (Lafferty, McCallum & Pereira, ICML 2001).

A sequence of labels y over T positions has the score

    start[y_1] + Σ_t emissions[t, y_t] + Σ_t moves[y_t, y_t+1] + end[y_T]

and the probability exp(score) / Z, where Z sums exp(score) over all L^T sequences. The scores that do not depend on the
input are one array `transitions`, float [L + 2, L]: rows 0..L-1 are `moves` (from-label → to-label), row L is `start`
and row L + 1 is `end`. `bert_models.crf` trains it.

Letters in shapes: T positions, L labels. Scores are summed in float64 for any input dtype, so that long sequences lose
no precision.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bert_runtime.numerics import FloatArray, softmax

__all__ = ["FORBIDDEN", "bio_transitions", "is_bio", "marginals", "viterbi"]

FORBIDDEN = -1e4
"""Score of a forbidden transition.

Finite, since -inf - -inf is NaN. exp(FORBIDDEN) is 0 in float64, no sum of a few logits outweighs it, and float32 still
resolves 0.001 at this magnitude.
"""


def viterbi(emissions: FloatArray, transitions: FloatArray) -> NDArray[np.int64]:
    """Return the label sequence of the highest score, by Viterbi's algorithm in O(T L²).

    Args:
        emissions: float [T, L].
        transitions: float [L + 2, L].

    Returns:
        Label ids, int64 [T]. Ties go to the lower id, decided from the last position backwards.
    """
    path = np.zeros(len(emissions), dtype=np.int64)
    if not len(path):
        return path
    moves, start, end = _parts(transitions)
    origins = np.zeros(emissions.shape, dtype=np.int64)
    scores = start + emissions[0]
    for position in range(1, len(path)):
        candidates = scores[:, None] + moves
        origins[position] = candidates.argmax(axis=0)
        scores = candidates.max(axis=0) + emissions[position]
    path[-1] = (scores + end).argmax()
    for position in range(len(path) - 1, 0, -1):
        path[position - 1] = origins[position, path[position]]
    return path


def marginals(emissions: FloatArray, transitions: FloatArray) -> FloatArray:
    """Return the posterior probability of each label at each position, by the forward-backward algorithm in log space.

    Args:
        emissions: float [T, L].
        transitions: float [L + 2, L].

    Returns:
        Probabilities [T, L] in the dtype of `emissions`; each position's sum to 1.
    """
    moves, start, end = _parts(transitions)
    scores = emissions.astype(np.float64)
    forward = _log_weights(scores, moves, start)
    backward = _log_weights(scores[::-1], moves.T, end)[::-1]
    # Both include the position's own emission.
    return softmax(forward + backward - scores).astype(emissions.dtype)


def is_bio(labels: Sequence[str]) -> bool:
    """Return whether the label names follow the BIO scheme (IOB2), so that `bio_transitions` can constrain them.

    Each label is O, B-X or I-X for a type X, and every I-X has its B-X. Label sets of IOB1, where I-X may begin an
    entity (Tjong Kim Sang & Veenstra, EACL 1999), pass if they meet this: only the data tells the two apart.
    """
    return not _not_bio(labels)


def bio_transitions(labels: Sequence[str], transitions: FloatArray | None = None) -> NDArray[np.float32]:
    """Constrain transitions so that no best sequence violates BIO.

    `FORBIDDEN` replaces the score where I-X would follow anything but B-X or I-X, and where it would come first. So
    constraining twice is the same as once. The constraint holds while emissions and transitions stay far below 1e4.

    Args:
        labels: the L label names.
        transitions: float [L + 2, L], by default zeros.

    Returns:
        The constrained transitions, float32 [L + 2, L]; the argument is not changed.

    Raises:
        ValueError: the labels are not BIO (see `is_bio`), or `transitions` has another shape.
    """
    if invalid := _not_bio(labels):
        raise ValueError(
            f"expected BIO labels (O, B-X, and I-X only with its B-X), found {', '.join(map(repr, invalid))}"
        )
    shape = len(labels) + 2, len(labels)
    scores = np.zeros(shape, dtype=np.float32) if transitions is None else np.array(transitions, dtype=np.float32)
    if scores.shape != shape:
        raise ValueError(f"expected transitions {list(shape)} for {len(labels)} labels, found {list(scores.shape)}")
    for index, label in enumerate(labels):
        if label.startswith("I-"):
            allowed = {label, f"B-{label[2:]}"}
            forbidden = [before not in allowed for before in labels]
            scores[[*forbidden, True, False], index] = FORBIDDEN
    return scores


def _parts(transitions: FloatArray) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Split transitions [L + 2, L] into moves [L, L], start [L] and end [L]."""
    scores = transitions.astype(np.float64)
    return scores[:-2], scores[-2], scores[-1]


def _log_weights(
    emissions: NDArray[np.float64], moves: NDArray[np.float64], start: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the log of the summed exp(score) of all sequences up to each position that end in each label, [T, L]."""
    totals = np.empty_like(emissions)
    incoming = start
    for position, emission in enumerate(emissions):
        totals[position] = incoming + emission
        incoming = _log_sum_exp(totals[position][:, None] + moves)
    return totals


def _log_sum_exp(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log of the sum of exponentials over the first axis, without overflow: [N, M] → [M]."""
    highest = values.max(axis=0)
    return highest + np.log(np.exp(values - highest).sum(axis=0))


def _not_bio(labels: Sequence[str]) -> list[str]:
    """Return the labels that violate BIO."""
    known = set(labels)
    return [
        label
        for label in labels
        if not (
            label == "O"
            or (label.startswith("B-") and len(label) > 2)
            or (label.startswith("I-") and len(label) > 2 and f"B-{label[2:]}" in known)
        )
    ]
