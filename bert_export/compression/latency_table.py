"""A table of measured latencies by shape, from which those of all candidates follow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean
from typing import Any

import numpy as np

from bert_export.compression.candidates import ALL_TOKENS, Shape
from bert_export.latency import fastest_calls_ms
from bert_models.pruning_schedule import kept_tokens
from bert_runtime.model import Model
from bert_runtime.tasks import TextInput

__all__ = ["LatencyTable", "corner_shapes", "kept_share", "measure_latencies"]

_ROUNDS = 9
"""Calls of each model for each text."""

_ATTENTION_SHARE = 0.25
"""Share of a layer's work before tokens leave it: the projections of queries, keys and values are 3 of the 12 · hidden²
weights of a layer whose feed-forward block is four times as wide."""


def kept_share(lengths: Sequence[int], percent: int) -> float:
    """Return which share of the tokens of some texts stays at a step of token pruning, of 1.

    Args:
        lengths: lengths of the texts in tokens, at least one.
        percent: percentage of each text's tokens that stays, see `bert_models.pruning_schedule.kept_tokens`.
    """
    if percent == ALL_TOKENS:
        return 1.0
    return sum(kept_tokens(length, percent) for length in lengths) / sum(lengths)


@dataclass(frozen=True)
class LatencyTable:
    """Mean milliseconds of one text at a time, measured on INT8 graphs of some shapes."""

    measured_ms: Mapping[Shape, float]
    """At least two numbers of layers, or two widths."""
    lengths: Sequence[int] = (1,)
    """Lengths in tokens of the texts that were timed."""

    def predict_ms(self, shape: Shape) -> float:
        """Return the latency of a shape: the measured one, or that of `fitted_ms`.

        The fitted one is scaled by what the fit is off for the measured shape of the nearest width, if there is one of
        as many layers and tokens.
        """
        if shape in self.measured_ms:
            return self.measured_ms[shape]
        sizes = shape.num_layers, shape.kept_percent
        alike = [known for known in self.measured_ms if (known.num_layers, known.kept_percent) == sizes]
        if not alike:
            return self.fitted_ms(shape)
        nearest = min(alike, key=lambda known: abs(known.intermediate_size - shape.intermediate_size))
        return self.fitted_ms(shape) * self.measured_ms[nearest] / self.fitted_ms(nearest)

    def fitted_ms(self, shape: Shape) -> float:
        """Return the latency of a shape by the model t = a + b·layers + work·(c + d·width), fitted to the measurements.

        The graphs' projections are INT8 matrix multiplications, whose time grows with the number of neurons, and all
        layers have the same shape. Their work is counted in layers that see all tokens: it is their number, or less if
        tokens leave.
        """
        terms = np.array([self._terms(known) for known in self.measured_ms])
        times = np.array(list(self.measured_ms.values()))
        coefficients, *_ = np.linalg.lstsq(terms, times, rcond=None)
        return max(float(np.array(self._terms(shape)) @ coefficients), 1e-6)

    def _terms(self, shape: Shape) -> list[float]:
        work = self._work(shape)
        return [1.0, shape.num_layers, work, work * shape.intermediate_size]

    def _work(self, shape: Shape) -> float:
        """Return how many layers that see all tokens would have as much to do."""
        percents = {} if shape.token_pruning is None else shape.token_pruning.percents
        work, share = 0.0, 1.0
        for layer in range(1, shape.num_layers + 1):
            work += _ATTENTION_SHARE * share
            share = kept_share(self.lengths, percents[layer]) if layer in percents else share
            work += (1 - _ATTENTION_SHARE) * share
        return work

    def extended(self, measured_ms: Mapping[Shape, float], full: Shape) -> "LatencyTable":
        """Return the table with newer measurements, which were made in turn with the full shape's.

        They are scaled by the full shape's time in either, since the machine may have been slower.
        """
        scale = self.measured_ms[full] / measured_ms[full]
        more = {shape: ms * scale for shape, ms in measured_ms.items() if shape != full}
        return replace(self, measured_ms={**self.measured_ms, **more})

    def to_json(self) -> list[dict[str, Any]]:
        """Return the measurements as JSON values."""
        return [{**asdict(shape), "latency_ms": round(ms, 5)} for shape, ms in self.measured_ms.items()]

    @classmethod
    def from_json(cls, rows: Sequence[Mapping[str, Any]], lengths: Sequence[int] = (1,)) -> "LatencyTable":
        """Return the table that `to_json` wrote, of texts with these lengths."""
        sizes = [field.name for field in fields(Shape)]
        return cls({Shape(*(row[size] for size in sizes)): row["latency_ms"] for row in rows}, lengths)


def corner_shapes(num_layers: int, widths: Sequence[int], percents: Sequence[int] = (ALL_TOKENS,)) -> list[Shape]:
    """Return the shapes to measure: all layers and a third of them, as wide as may be and as narrow.

    Those that prune tokens have all layers, once with the widest blocks and once with the narrowest.

    Args:
        num_layers: layers of the uncompressed model.
        widths: widths of feed-forward blocks.
        percents: percentages of tokens that candidates keep.
    """
    corners = [
        Shape(depth, width)
        for depth in dict.fromkeys((num_layers, max(1, num_layers // 3)))
        for width in dict.fromkeys((max(widths), min(widths)))
    ]
    pruned = sorted(percent for percent in percents if percent != ALL_TOKENS)
    return corners + [
        Shape(num_layers, width, percent)
        for width, percent in zip((max(widths), min(widths)), pruned[:1] + pruned[-1:], strict=False)
    ]


def measure_latencies(models: Mapping[Any, Model], texts: Sequence[TextInput]) -> dict[Any, float]:
    """Time models on texts, one at a time, tokenization included, see `fastest_calls_ms`.

    Args:
        models: loaded models by name.
        texts: typical inputs.

    Returns:
        For each model the mean over the texts of the fastest call's milliseconds.
    """

    def outputs_of(model: Model) -> Callable[[TextInput], object]:
        return lambda text: model.outputs([text])

    times_ms = fastest_calls_ms({name: outputs_of(model) for name, model in models.items()}, texts, _ROUNDS)
    return {name: fmean(times) for name, times in times_ms.items()}
