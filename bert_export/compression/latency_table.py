"""A table of measured latencies by shape, from which those of all candidates follow."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_export.compression.candidates import Shape
from bert_runtime.model import Model
from bert_runtime.tasks import TextInput

__all__ = ["LatencyTable", "corner_shapes", "measure_latencies"]

_ROUNDS = 9
"""Calls of each model for each text."""


@dataclass(frozen=True)
class LatencyTable:
    """Mean milliseconds of one text at a time, measured on INT8 graphs of some shapes."""

    measured_ms: Mapping[Shape, float]
    """At least two numbers of layers, or two widths."""

    def predict_ms(self, shape: Shape) -> float:
        """Return the latency of a shape by the model t = a + layers · (b + c · width), fitted to the measurements.

        The graphs' projections are INT8 matrix multiplications, whose time grows with the number of neurons, and all
        layers have the same shape. A measured shape has the latency that was measured.
        """
        if shape in self.measured_ms:
            return self.measured_ms[shape]
        terms = np.array([_terms(known) for known in self.measured_ms])
        times = np.array(list(self.measured_ms.values()))
        coefficients, *_ = np.linalg.lstsq(terms, times, rcond=None)
        return max(float(np.array(_terms(shape)) @ coefficients), 1e-6)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the measurements as JSON values."""
        return [
            {"layers": shape.num_layers, "intermediate_size": shape.intermediate_size, "latency_ms": round(ms, 5)}
            for shape, ms in self.measured_ms.items()
        ]

    @classmethod
    def from_json(cls, rows: Sequence[Mapping[str, Any]]) -> "LatencyTable":
        """Return the table that `to_json` wrote."""
        return cls({Shape(row["layers"], row["intermediate_size"]): row["latency_ms"] for row in rows})


def _terms(shape: Shape) -> list[float]:
    return [1.0, shape.num_layers, shape.num_layers * shape.intermediate_size]


def corner_shapes(num_layers: int, widths: Sequence[int]) -> list[Shape]:
    """Return the shapes to measure: one layer and all of them, as wide as may be and as narrow."""
    return [
        Shape(depth, width)
        for depth in dict.fromkeys((num_layers, max(1, num_layers // 3)))
        for width in dict.fromkeys((max(widths), min(widths)))
    ]


def measure_latencies(models: Mapping[Any, Model], texts: Sequence[TextInput]) -> dict[Any, float]:
    """Time models on texts, one at a time, tokenization included, in turn and round after round.

    Other processes only ever add time, so the fastest call counts: medians of a machine that trained meanwhile made two
    narrow layers slower than two wide ones.

    Args:
        models: Loaded models by name.
        texts: Typical inputs.

    Returns:
        For each model the mean over the texts of the fastest call's milliseconds.
    """
    totals = dict.fromkeys(models, 0.0)
    for text in texts:
        fastest = dict.fromkeys(models, float("inf"))
        for _ in range(_ROUNDS):
            for name, model in models.items():
                model.outputs([text])  # the caches hold the data of the last model
                start = time.perf_counter()
                model.outputs([text])
                fastest[name] = min(fastest[name], time.perf_counter() - start)
        for name, seconds in fastest.items():
            totals[name] += seconds * 1e3 / len(texts)
    return totals
