"""Whether a graph computes what the PyTorch model computes, for any padding."""

from collections.abc import Callable

import numpy as np
import torch

from bert_export.errors import ParityError
from bert_models import TaskModel
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import SentenceEmbedding, Task
from bert_runtime.tokenization import Batch

__all__ = ["check_parity", "probe_batches", "reference_outputs", "tolerance"]


def tolerance(task: Task) -> float:
    """Largest absolute difference that float32 arithmetic in another order explains."""
    return 1e-5 if isinstance(task, SentenceEmbedding) and task.normalize else 1e-4


def probe_batches(model: TaskModel, max_tokens: int, seed: int = 0) -> dict[str, Batch]:
    """Random token ids and segments under every kind of mask a caller may pass, by the kind's name."""
    generator = np.random.default_rng(seed)
    long, short = max_tokens, max(1, min(max_tokens, 24))

    def batch(mask: np.ndarray) -> Batch:
        ids = generator.integers(0, model.config.vocab_size, mask.shape)
        segments = np.sort(generator.integers(0, max(1, model.config.type_vocab_size), mask.shape), axis=1)
        return Batch(model.task.valid_probe_ids(ids), mask.astype(np.int64), segments)

    lengths = np.array([[short], [short // 2 + 1], [2], [1]])
    right = np.arange(short)[None, :] < lengths
    holes = generator.random((3, short)) < 0.6
    holes[:, short // 2] = True  # a row without any token has no answer to compare
    return {
        "unpadded": batch(np.ones((1, short))),
        "longest": batch(np.ones((1, long))),
        "one token": batch(np.ones((2, 1))),
        "right-padded": batch(right),
        "left-padded": batch(right[:, ::-1]),
        "holes": batch(holes),
    }


def reference_outputs(model: TaskModel, batch: Batch) -> FloatArray:
    """What PyTorch computes: float32 [B, …]."""
    with torch.inference_mode():
        outputs: FloatArray = model(*(torch.from_numpy(np.ascontiguousarray(array)) for array in batch)).numpy()
    chosen: FloatArray = model.task.graph_output(outputs, batch.input_ids)
    return chosen


def check_parity(model: TaskModel, run: Callable[[Batch], FloatArray], max_tokens: int) -> dict[str, float]:
    """The largest absolute difference between `run` and PyTorch over `probe_batches`, with its tolerance.

    Raises `ParityError` naming every kind of mask whose difference exceeds it, NaN included.
    """
    allowed = tolerance(model.task)
    errors = {
        kind: float(np.abs(run(batch) - reference_outputs(model, batch)).max())
        for kind, batch in probe_batches(model, max_tokens).items()
    }
    failed = [f"{kind} ({error:.2g})" for kind, error in errors.items() if not error <= allowed]
    if failed:
        raise ParityError(
            f"the exported graph differs from PyTorch by more than {allowed:.0e} on inputs that are {', '.join(failed)}"
        )
    return {"max_abs_error": max(errors.values()), "tolerance": allowed}
