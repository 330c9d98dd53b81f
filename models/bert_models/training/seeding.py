"""Seed random numbers so that a resumed run draws the same ones as an uninterrupted run."""

import numpy as np
import torch

__all__ = ["seed_from_indices"]


def seed_from_indices(*indices: int) -> None:
    """Seed torch for dropout and sampling from a seed and the indices of a batch, such as its epoch and number.

    What was drawn before has no influence, so a resumed run draws the same numbers as an uninterrupted one.
    """
    torch.manual_seed(int(np.random.SeedSequence(indices).generate_state(1)[0]))
