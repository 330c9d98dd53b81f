"""Compare a graph for CUDA, run on the CPU, with PyTorch."""

from collections.abc import Callable

import numpy as np

from bert_export.errors import ParityError
from bert_export.parity import output_errors, output_tolerances, probe_batches, read_outputs, reference_outputs
from bert_models import TaskModel
from bert_runtime.bundle.manifest import MASKED
from bert_runtime.gpu.shape_buckets import accepts_batch
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["FP16_TOLERANCE", "check_cuda_parity"]

FP16_TOLERANCE = 2e-2
"""Maximum difference of FP16 from PyTorch in FP32, as a share of the largest output or of 0.1, whichever is larger.

A judgement: BERT-family models differ by less than a tenth of it."""


def check_cuda_parity(
    torch_model: TaskModel, run: Callable[[Batch], FloatArray], max_tokens: int, *, fp16: bool, padding: str = MASKED
) -> dict[str, float]:
    """Compare a CUDA graph's outputs with PyTorch's on those of `probe_batches` that its padding mode accepts.

    A packed graph takes sequences that are padded at the end and has no outputs for padding; an unmasked one takes
    batches without padding. A sequence that is masked entirely has no right output, but must give finite numbers and
    leave the other sequences alone.

    Args:
        torch_model: computes the reference outputs.
        run: runs the graph on a batch; returns float32 `[B, …]`.
        max_tokens: length of the longest probe batch.
        fp16: whether the graph computes in FP16, which widens the tolerance to `FP16_TOLERANCE`.
        padding: padding mode of the graph: `masked`, `packed` or `unmasked`.

    Returns:
        The maximum absolute error, `max_abs_error`, and the `tolerance` of the largest output.

    Raises:
        ParityError: the error exceeds the tolerance; names every kind of mask where it does.
    """
    task = torch_model.task
    batches = {
        kind: batch for kind, batch in probe_batches(torch_model, max_tokens).items() if accepts_batch(padding, batch)
    }
    outputs = {kind: reference_outputs(torch_model, batch) for kind, batch in batches.items()}
    expected = {kind: read_outputs(task, batch, outputs[kind]) for kind, batch in batches.items()}
    scale = max(0.1, *(float(np.abs(array).max(initial=0)) for array in outputs.values()))
    allowed = np.array(FP16_TOLERANCE * scale) if fp16 else output_tolerances(task, expected.values())
    errors = {
        kind: output_errors(read_outputs(task, batch, run(batch)), expected[kind]) for kind, batch in batches.items()
    }
    failed = [f"{kind} ({error.max():.2g})" for kind, error in errors.items() if not (error <= allowed).all()]
    padded = batches.get("holes", batches.get("right-padded"))
    if padded is not None and not np.isfinite(run(_mask_first_sequence(padded))).all():
        failed.append("fully masked (not finite)")
    if failed:
        raise ParityError(
            f"the graph for CUDA differs from PyTorch by more than {allowed.min():.2g} on inputs that are "
            f"{', '.join(failed)}"
        )
    return {"max_abs_error": float(max(error.max() for error in errors.values())), "tolerance": float(allowed.max())}


def _mask_first_sequence(batch: Batch) -> Batch:
    """Mask every token of the first sequence."""
    mask = batch.attention_mask.copy()
    mask[0] = 0
    return batch._replace(attention_mask=mask)
