"""Compare a graph's outputs with the PyTorch model's, for every kind of padding."""

from collections.abc import Callable, Iterable

import numpy as np
import torch

from bert_export.errors import ParityError
from bert_models import TaskModel
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import SentenceEmbedding, Task
from bert_runtime.tokenization import Batch

__all__ = [
    "check_parity",
    "output_errors",
    "output_tolerances",
    "probe_batches",
    "read_outputs",
    "reference_outputs",
    "tolerance",
]

_RELATIVE_TOLERANCE = 1e-5
"""Share of an output's largest value that float32 sums in another order explain: 84 steps of float32 (a judgement)."""

_PRUNED_SEEDS = 3
"""Sets of random batches that a graph which prunes tokens is compared on until one is within the tolerance. Rounding
decides which of two tokens of almost equal importance stays, and the outputs depend on that."""


def tolerance(task: Task, largest: float = 0.0) -> float:
    """Return the maximum difference of an output that float32 sums in another order explain (a judgement).

    Rounding errors grow with what is rounded: a float32 step at 2,000 is 1.2e-4 alone. So values above 10 have more.

    Args:
        task: the task.
        largest: the largest absolute value of the output.
    """
    normalized = isinstance(task, SentenceEmbedding) and task.normalize
    return max(1e-5 if normalized else 1e-4, _RELATIVE_TOLERANCE * largest)


def probe_batches(torch_model: TaskModel, max_tokens: int, seed: int = 0) -> dict[str, Batch]:
    """Make batches of random token ids and segments, one for every kind of mask that callers may pass.

    Args:
        torch_model: the model; its vocabulary and task limit the ids.
        max_tokens: length of the longest batch.
        seed: seed of the random ids.

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


def read_outputs(task: Task, batch: Batch, outputs: FloatArray) -> FloatArray:
    """Return the outputs that are read, [N, outputs], of a graph's for a batch [B, …].

    Where every token has an output, padding's is left out: none is read, and random ids behind one real token can be
    so ill-conditioned that rounding alone exceeds the tolerance.
    """
    read = outputs[batch.attention_mask == 1] if task.has_output_per_token else outputs
    return read if read.ndim > 1 else read[:, None]


def output_tolerances(task: Task, expected: Iterable[FloatArray]) -> FloatArray:
    """Return the `tolerance` of each output by its largest value, float64 [outputs].

    Its own, since a dimension of a hidden state may be thousands of times as large as all others, and that of all
    sequences, since a value near 0 may be the sum of large terms.

    Args:
        task: the task.
        expected: reference outputs [N, outputs] of each batch, see `read_outputs`.
    """
    largest = np.max([np.abs(outputs).max(axis=0, initial=0) for outputs in expected], axis=0)
    return np.array([tolerance(task, float(value)) for value in largest])


def output_errors(found: FloatArray, expected: FloatArray) -> FloatArray:
    """Compute the maximum absolute difference of each output [N, outputs], or NaN: float32 [outputs]; of none, 0."""
    errors: FloatArray = np.abs(found - expected).max(axis=0, initial=0)
    return errors


def check_parity(torch_model: TaskModel, run: Callable[[Batch], FloatArray], max_tokens: int) -> dict[str, float]:
    """Compare a graph's outputs with PyTorch's on `probe_batches`.

    Args:
        torch_model: computes the reference outputs.
        run: runs the graph on a batch; returns float32 [B, …].
        max_tokens: length of the longest probe batch.

    Returns:
        The maximum absolute error, `max_abs_error`, and the `tolerance` of the largest output, see `output_tolerances`.

    Raises:
        ParityError: an error exceeds the tolerance or is NaN; names every kind of mask where one does.
    """
    task, failed = torch_model.task, []
    for seed in range(1 if torch_model.config.token_pruning is None else _PRUNED_SEEDS):
        batches = probe_batches(torch_model, max_tokens, seed)
        expected = {
            kind: read_outputs(task, batch, reference_outputs(torch_model, batch)) for kind, batch in batches.items()
        }
        allowed = output_tolerances(task, expected.values())
        errors = {
            kind: output_errors(read_outputs(task, batch, run(batch)), expected[kind])
            for kind, batch in batches.items()
        }
        failed = [f"{kind} ({error.max():.2g})" for kind, error in errors.items() if not (error <= allowed).all()]
        if not failed:
            largest = max(error.max() for error in errors.values())
            return {"max_abs_error": float(largest), "tolerance": float(allowed.max())}
    raise ParityError(
        f"the exported graph differs from PyTorch by more than {tolerance(task):.0e} on inputs that are "
        f"{', '.join(failed)}, and by more than {_RELATIVE_TOLERANCE:.0e} of the largest output"
    )
