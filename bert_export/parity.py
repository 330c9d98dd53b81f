"""Compare a graph's outputs with the PyTorch model's, for every kind of padding."""

from collections.abc import Callable

import numpy as np
import torch

from bert_export.errors import ParityError
from bert_models import TaskModel
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import SentenceEmbedding, Task
from bert_runtime.tokenization import Batch

__all__ = ["check_parity", "max_abs_error", "probe_batches", "reference_outputs", "tolerance"]

_PRUNED_SEEDS = 3
"""Sets of random batches that a graph which prunes tokens is compared on until one is within the tolerance. Rounding
decides which of two tokens of almost equal importance stays, and the outputs depend on that."""


def tolerance(task: Task) -> float:
    """Return the maximum absolute difference that float32 arithmetic in another order explains (a judgement)."""
    return 1e-5 if isinstance(task, SentenceEmbedding) and task.normalize else 1e-4


def probe_batches(torch_model: TaskModel, max_tokens: int, seed: int = 0) -> dict[str, Batch]:
    """Make batches of random token ids and segments, one for every kind of mask that callers may pass.

    Args:
        torch_model: The model; its vocabulary and task limit the ids.
        max_tokens: Length of the longest batch.
        seed: Seed of the random ids.

    Returns:
        The batches by kind of mask, such as `right-padded`.
    """
    generator = np.random.default_rng(seed)
    long, short = max_tokens, max(1, min(max_tokens, 24))

    def batch(mask: np.ndarray) -> Batch:
        ids = generator.integers(0, torch_model.config.vocab_size, mask.shape)
        segments = np.sort(generator.integers(0, max(1, torch_model.config.type_vocab_size), mask.shape), axis=1)
        return Batch(torch_model.task.valid_probe_ids(ids), mask.astype(np.int64), segments)

    lengths = np.array([[short], [short // 2 + 1], [2], [1]])
    right = np.arange(short)[None, :] < lengths
    holes = generator.random((3, short)) < 0.6
    holes[:, short // 2] = True  # a sequence without any token has no right output
    return {
        "unpadded": batch(np.ones((1, short))),
        "longest": batch(np.ones((1, long))),
        "one token": batch(np.ones((2, 1))),
        "right-padded": batch(right),
        "left-padded": batch(right[:, ::-1]),
        "holes": batch(holes),
    }


def reference_outputs(torch_model: TaskModel, batch: Batch) -> FloatArray:
    """Compute the outputs of the PyTorch model that a graph has: float32 [B, …]."""
    with torch.inference_mode():
        outputs: FloatArray = torch_model(*(torch.from_numpy(np.ascontiguousarray(array)) for array in batch)).numpy()
    selected: FloatArray = torch_model.task.graph_output(outputs, batch.input_ids)
    return selected


def max_abs_error(task: Task, batch: Batch, found: FloatArray, expected: FloatArray) -> float:
    """Compute the maximum absolute difference of outputs [B, …], or NaN; of none, 0.

    Where every token has an output, padding's is left out: none is read, and random ids behind one real token can be
    so ill-conditioned that rounding alone exceeds the tolerance.
    """
    difference = found - expected
    if task.has_output_per_token:
        difference = difference[batch.attention_mask == 1]
    return float(np.abs(difference).max(initial=0))


def check_parity(torch_model: TaskModel, run: Callable[[Batch], FloatArray], max_tokens: int) -> dict[str, float]:
    """Compare a graph's outputs with PyTorch's on `probe_batches`.

    Args:
        torch_model: Computes the reference outputs.
        run: Runs the graph on a batch; returns float32 [B, …].
        max_tokens: Length of the longest probe batch.

    Returns:
        The maximum absolute error, `max_abs_error`, and the `tolerance` it was compared with.

    Raises:
        ParityError: The error exceeds the tolerance or is NaN; names every kind of mask where it does.
    """
    allowed = tolerance(torch_model.task)
    failed: list[str] = []
    for seed in range(1 if torch_model.config.token_pruning is None else _PRUNED_SEEDS):
        errors = {
            kind: max_abs_error(torch_model.task, batch, run(batch), reference_outputs(torch_model, batch))
            for kind, batch in probe_batches(torch_model, max_tokens, seed).items()
        }
        failed = [f"{kind} ({error:.2g})" for kind, error in errors.items() if not error <= allowed]
        if not failed:
            return {"max_abs_error": max(errors.values()), "tolerance": allowed}
    raise ParityError(
        f"the exported graph differs from PyTorch by more than {allowed:.0e} on inputs that are {', '.join(failed)}"
    )
