"""Decoding a linear-chain conditional random field (Lafferty, McCallum & Pereira, ICML 2001).

A sequence of labels y over T positions has the score

    start[y_1] + Σ_t emissions[t, y_t] + Σ_t moves[y_t, y_t+1] + end[y_T]

and the probability exp(score) / Z, where Z sums exp(score) over all L^T sequences. One array holds what does not
depend on the input: `transitions`, float [L + 2, L], of which rows 0..L-1 are `moves` (from-label → to-label), row L is
`start` and row L + 1 is `end`. `bert_models.crf` trains it.

Letters in shapes: T positions, L labels. Scores are summed in float64 whatever the arrays' dtype, so that a long
sequence loses nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bert_runtime.numerics import FloatArray, softmax

__all__ = ["FORBIDDEN", "bio_transitions", "is_bio", "marginals", "viterbi"]

FORBIDDEN = -1e4
"""The score of a forbidden move: finite, since -inf - -inf is NaN; float32 still resolves 0.001 beside it.

exp(FORBIDDEN) is 0 in float64, and no sum of a few logits outweighs it.
"""


def viterbi(emissions: FloatArray, transitions: FloatArray) -> NDArray[np.int64]:
    """The sequence of the highest score: emissions float [T, L], transitions float [L + 2, L] → label ids int64 [T].

    Viterbi's algorithm, in O(T L²). Ties go to the lower label id, decided from the last position backwards.
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
    """Each label's posterior probability at each position: float [T, L], [L + 2, L] → [T, L], emissions' dtype.

    The forward-backward algorithm in log space: the sequences through a label weigh what all beginnings up to it weigh,
    times what all endings from it on weigh. Rows sum to one.
    """
    moves, start, end = _parts(transitions)
    scores = emissions.astype(np.float64)
    beginnings = _log_weights(scores, moves, start)
    endings = _log_weights(scores[::-1], moves.T, end)[::-1]
    # Both count the position's own emission.
    return softmax(beginnings + endings - scores).astype(emissions.dtype)


def is_bio(labels: Sequence[str]) -> bool:
    """Whether the label names follow the BIO scheme (IOB2), so that `bio_transitions` can constrain them.

    Each is O, B-X or I-X for a type X, and every I-X has its B-X. Label sets of IOB1, where I-X may begin an entity
    (Tjong Kim Sang & Veenstra, EACL 1999), pass when they have all of these: only their data tell the two apart.
    """
    return not _not_bio(labels)


def bio_transitions(labels: Sequence[str], transitions: FloatArray | None = None) -> NDArray[np.float32]:
    """Transitions with which no best sequence breaks BIO: float [L + 2, L], zeros if None → float32 [L + 2, L].

    `FORBIDDEN` stands where I-X would follow anything but B-X or I-X, and where it would come first. It replaces what
    training left there, so constraining twice is the same as once. The constraint holds as long as emissions and
    transitions stay far below 1e4. Raises ValueError for labels that are not BIO (see `is_bio`) and for `transitions`
    of another shape.
    """
    if offending := _not_bio(labels):
        raise ValueError(
            f"expected BIO labels (O, B-X, and I-X beside its B-X), found {', '.join(map(repr, offending))}"
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
    """transitions [L + 2, L] → moves [L, L], start [L] and end [L]."""
    scores = transitions.astype(np.float64)
    return scores[:-2], scores[-2], scores[-1]


def _log_weights(
    emissions: NDArray[np.float64], moves: NDArray[np.float64], start: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Log of the summed exp(score) of all partial sequences up to each position that end in each label: [T, L]."""
    totals = np.empty_like(emissions)
    arriving = start
    for position, emission in enumerate(emissions):
        totals[position] = arriving + emission
        arriving = _log_sum_exp(totals[position][:, None] + moves)
    return totals


def _log_sum_exp(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log of the sum of exponentials over the first axis, without overflow: [N, M] → [M]."""
    highest = values.max(axis=0)
    return highest + np.log(np.exp(values - highest).sum(axis=0))


def _not_bio(labels: Sequence[str]) -> list[str]:
    """The labels that `is_bio` objects to."""
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
