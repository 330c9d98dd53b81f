"""Measure the ranges by which a bundle quantizes its embeddings to 8 bits."""

from dataclasses import replace

import numpy as np

from bert_export.variants import Probe
from bert_runtime.model import Model
from bert_runtime.tasks import SentenceEmbedding, Task
from bert_runtime.tasks.values import stack_single_window
from bert_runtime.vector_quantization import embedding_ranges

__all__ = ["with_embedding_ranges"]

_DIGITS = 6
"""Significant digits of a range: a step is 1/255 of it, and more digits would only make the manifest longer."""


def with_embedding_ranges(task: Task, fp32: Model, probe: Probe) -> Task:
    """Return a sentence-embedding task with the ranges of FP32 embeddings on the calibration inputs.

    Args:
        task: the task; others than sentence-embedding are returned as they are.
        fp32: the FP32 model.
        probe: its calibration inputs and its texts are embedded.
    """
    if not isinstance(task, SentenceEmbedding):
        return task
    inputs = list(dict.fromkeys([*probe.calibration.all_inputs, *probe.texts]))
    vectors = stack_single_window(fp32.outputs(inputs[:_MAX_INPUTS]))
    if len(vectors) < 2 or not np.isfinite(vectors).all():
        return task
    rounded = ([float(f"{value:.{_DIGITS}g}") for value in limits] for limits in embedding_ranges(vectors).tolist())
    return replace(task, ranges=tuple(map(tuple, rounded)))


_MAX_INPUTS = 500
"""Embedded texts, at most: a few seconds of work (a judgement)."""
