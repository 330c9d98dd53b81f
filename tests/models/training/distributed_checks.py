"""What the tests of several processes share: a timeout, an environment, and a comparison of weights."""

import os
from pathlib import Path

from bert_models.weights import read_weights

TIMEOUT_S = 280
"""For all runs together, on a core that is busy with something else."""


def subprocess_env() -> dict[str, str]:
    """Return the environment of a command that starts as a single process."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def weights_match(one: Path, two: Path, tolerance: float) -> bool:
    """Whether no weight of two checkpoints differs by more than `tolerance`.

    Biases of keys are left out: softmax does not depend on them, so their gradients are rounding errors, which Adam
    scales up to whole steps.
    """
    first, second = read_weights(one), read_weights(two)
    assert first.keys() == second.keys()
    return all(
        float((first[key] - second[key]).abs().max()) <= tolerance for key in first if not key.endswith("key.bias")
    )
