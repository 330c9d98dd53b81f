"""Measure the activations that the projections of a graph read, on calibration texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bert_export.fusion.prune_tokens import KeptAxis, before_pruning, kept_axes
from bert_export.onnx_graph import linears, scope
from bert_export.progress import StepCallback, no_progress
from bert_export.temporary_session import RunValues, temporary_session
from bert_export.vocabulary_pooling import pooled_inputs
from bert_models.pruning_schedule import kept_tokens
from bert_runtime.numerics import Float32Array
from bert_runtime.tokenization import Batch

__all__ = ["Activations", "measure_activations"]

_MAX_SAMPLES = 4096
"""Maximum number of tokens whose activations are kept as samples (a judgement)."""

_MAX_BYTES = 2**30
"""Maximum memory for the samples of all projections; large models keep fewer tokens."""

_REPETITIVE_SHARE = 16
"""Samples of repetitive texts are at most one in this many of all others (a judgement). Without any, weights are
rounded such that errors gather where natural texts have no power. Where a last layer is reduced to the first token, all
texts' are kept, of repetitive ones as well: with a sixteenth of these, the mean difference of logits from FP32 was the
same to 0.0001 (classifiers of BANKING77, TREC and SST-2)."""

_REPETITIVE_HEADROOM = 1.3
"""How much wider than measured on repetitive texts the ranges of attention's outputs are: other words are repeated,
too (a judgement)."""


_ALL_TOKENS = "all"
"""Stands for the axis of tokens where none are pruned."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """The inputs of one projection: the range of each channel over all tokens, and a sample of the tokens."""

    low: Float32Array
    """Minimum of each channel [in]."""
    high: Float32Array
    """Maximum of each channel [in]."""
    samples: Float32Array
    """The inputs at some of the tokens [n, in], the same tokens for every projection."""

    def divided(self, factors: Float32Array) -> "Activations":
        """Return the activations with each channel divided by its factor [in]."""
        return Activations(low=self.low / factors, high=self.high / factors, samples=self.samples / factors)


def measure_activations(
    graph: ir.Model,
    batches: Sequence[Batch],
    headroom: float = 1.0,
    repetitive: Sequence[Batch] = (),
    on_step: StepCallback = no_progress,
) -> dict[str, Activations]:
    """Run a fused FP32 graph and measure the inputs of the encoder's projections, without padding.

    Args:
        graph: the graph; it is not changed.
        batches: calibration batches.
        headroom: factor by which the ranges are widened.
        repetitive: batches of one repeated word each, see `bert_export.repetitive_texts`. They widen the ranges of
            what attention returns, and are a small share of the samples.
        on_step: called after every batch.

    Returns:
        The activations by the name of the value. The same tokens are sampled for every value, and in every call. Where
        tokens are pruned, these are among those that are left.
    """
    graph = graph.clone()
    values = {
        str(linear.input.name): linear.input for linear in linears(graph) if scope(linear.matmul).startswith("encoder.")
    }
    values |= {str(value.name): value for value in pooled_inputs(graph)}
    attended = {name for name, value in values.items() if _is_attention_output(value)}
    axes = kept_axes(graph)
    read = [*values.values(), *(axis.mask for axis in axes.values())]
    graph.graph.outputs.extend(value for value in read if not value.is_graph_output())
    limit = max(1, min(_MAX_SAMPLES, _MAX_BYTES // (4 * sum(_width(value) for value in values.values()))))
    with temporary_session(graph) as run:
        steps, num_steps = count(1), len(batches) + len(repetitive)

        def collect(part: Sequence[Batch], max_samples: int) -> dict[str, _Collector]:
            return _collect(run, values, axes, part, max_samples, lambda: on_step(next(steps), num_steps))

        collected, repeated = collect(batches, limit), collect(repetitive, max(1, limit // _REPETITIVE_SHARE))
    measured = {name: collector.activations(headroom) for name, collector in collected.items()}
    if not repetitive:
        return measured
    return {
        name: _merge(found, repeated[name].activations(_REPETITIVE_HEADROOM), widen=name in attended)
        for name, found in measured.items()
    }


def _collect(
    run: RunValues,
    values: Mapping[str, ir.Value],
    axes: Mapping[str, KeptAxis],
    batches: Sequence[Batch],
    limit: int,
    on_batch: Callable[[], None],
) -> dict[str, "_Collector"]:
    """Run batches, and collect `values`: their ranges, and samples of at most `limit` tokens.

    Args:
        run: runs the graph.
        values: the values by name.
        axes: the axes of tokens that are left after others were pruned.
        batches: the batches.
        limit: maximum number of sampled tokens.
        on_batch: called after every batch.
    """
    lengths = [batch.attention_mask.sum(axis=1) for batch in batches]
    totals = {_ALL_TOKENS: sum(int(part.sum()) for part in lengths)} | {
        name: sum(kept_tokens(int(length), axis.percent) for part in lengths for length in part)
        for name, axis in axes.items()
    }
    samplers = {name: _Sampler(total, limit) for name, total in totals.items()}
    collectors = {name: _Collector() for name in values}
    axis_of = {name: _token_axis(value, axes) for name, value in values.items()}
    names = [*values, *(str(axis.mask.name) for axis in axes.values())]
    for batch in batches:
        arrays = dict(zip(names, run(names, batch), strict=True))
        masks = {_ALL_TOKENS: batch.attention_mask.astype(bool)}
        masks |= {name: arrays[str(axis.mask.name)] for name, axis in axes.items()}
        sampled = {name: samplers[name].next(int(mask.sum())) for name, mask in masks.items()}
        for name, axis_name in axis_of.items():
            array, mask = arrays[name], masks[axis_name]
            if array.shape[1] == mask.shape[1]:
                collectors[name].add(array[mask], sampled[axis_name])
            else:  # a last layer that is reduced to the first token
                collectors[name].add(array[:, 0], np.ones(len(array), dtype=bool))
        on_batch()
    return collectors


def _token_axis(value: ir.Value, axes: Mapping[str, KeptAxis]) -> str:
    """Return the key of `axes` that belongs to the tokens of a value, or `_ALL_TOKENS`."""
    size = None if value.shape is None else value.shape[1]
    name = size.value if isinstance(size, ir.SymbolicDim) else None
    return name if name is not None and name in axes else _ALL_TOKENS


def _is_attention_output(value: ir.Value) -> bool:
    """Tell whether attention computes the value: means of values, which are largest where all tokens are alike."""
    node = before_pruning(value).producer()
    return node is not None and node.op_type == "Attention"


def _merge(found: Activations, repeated: Activations, *, widen: bool) -> Activations:
    """Add the samples of repetitive texts, and widen the ranges to theirs if asked to."""
    return Activations(
        low=np.minimum(found.low, repeated.low) if widen else found.low,
        high=np.maximum(found.high, repeated.high) if widen else found.high,
        samples=np.concatenate([found.samples, repeated.samples]),
    )


def _width(value: ir.Value) -> int:
    """Return the size of the last axis."""
    width = value.shape[-1] if value.shape is not None else None
    assert isinstance(width, int)
    return width


class _Sampler:
    """Chooses `limit` of `count` tokens at random, part by part."""

    def __init__(self, count: int, limit: int) -> None:
        self._sampled = np.zeros(count, dtype=bool)
        self._sampled[np.random.default_rng(0).permutation(count)[:limit]] = True

    def next(self, count: int) -> NDArray[np.bool_]:
        """Return which of the next `count` tokens are chosen: bool [count]."""
        chosen, self._sampled = np.split(self._sampled, [count])
        return chosen


class _Collector:
    """Collects the inputs of one projection over batches."""

    def __init__(self) -> None:
        self._low: list[Float32Array] = []
        self._high: list[Float32Array] = []
        self._samples: list[Float32Array] = []

    def add(self, inputs: Float32Array, sampled: NDArray[np.bool_]) -> None:
        """Add the inputs at some tokens [n, in], and keep the sampled ones [n]."""
        self._low.append(inputs.min(axis=0))
        self._high.append(inputs.max(axis=0))
        self._samples.append(inputs[sampled])

    def activations(self, headroom: float) -> Activations:
        """Return the activations over all batches."""
        low, high = headroom * np.min(self._low, axis=0), headroom * np.max(self._high, axis=0)
        return Activations(low=low, high=high, samples=np.concatenate(self._samples))
