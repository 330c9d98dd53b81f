"""Divide outlier channels of activations by a factor, and multiply the weights that read them by it.

This is SmoothQuant (Xiao et al., arXiv:2211.10438). After attention, the division is folded into the projection of the
values and costs nothing. A LayerNorm's output also feeds the residual, so that there the division is a `Mul` of
[B, S, H].
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bert_export.fusion.prune_tokens import before_pruning
from bert_export.onnx_graph import Linear, NoMatch, add_initializer, graph_of, insert_before, producer
from bert_export.quantization.projections import SharedWeight
from bert_runtime.numerics import Float32Array

__all__ = ["SMOOTHING", "fold_into_gated", "fold_into_values", "smooth", "smoothing_factors"]

SMOOTHING = 0.9
"""SmoothQuant's migration strength α: 0 moves nothing into the weights, 1 gives all input channels one range.

A judgement: the paper takes 0.5 for most models and more where activations have stronger outliers."""

_MIN_SHARE = 1e-5
"""Channels with maxima below this share of the largest are treated as if they had it."""


def smoothing_factors(weight: Float32Array, abs_max: Float32Array, strength: float = SMOOTHING) -> Float32Array:
    """Compute what to divide each input channel by: `abs_max^α / max|weight|^(1 - α)` (arXiv:2211.10438, equation 4).

    Args:
        weight: the weight that reads the inputs `[in, out]`.
        abs_max: maximum absolute value of each input channel `[in]`.
        strength: migration strength α.

    Returns:
        The factors `[in]`, whose geometric mean is 1.
    """
    inputs = _floored(abs_max.astype(np.float64))
    weights = _floored(np.abs(weight).max(axis=1).astype(np.float64))
    exponents = strength * np.log(inputs) - (1 - strength) * np.log(weights)
    factors: Float32Array = np.exp(exponents - exponents.mean()).astype(np.float32)
    return factors


def _floored(maxima: NDArray[np.float64]) -> NDArray[np.float64]:
    """Raise channels of zeros, whose logarithm is infinite, to a small share of the largest."""
    return np.maximum(maxima, _MIN_SHARE * max(float(maxima.max()), 1e-30))


def smooth(projection: SharedWeight, strength: float = SMOOTHING) -> None:
    """Smooth the inputs of a projection by a `Mul` before it, with a migration strength."""
    factors = smoothing_factors(projection.weight, projection.input_abs_max, strength)
    projection.scale_inputs(factors)
    graph = graph_of(projection.linears[0].matmul)
    reciprocals = add_initializer(graph, f"{projection.linears[0].weight.name}.smoothing", 1 / factors)
    for linear in projection.linears:
        (scaled,) = insert_before(linear.matmul, "Mul", [linear.input, reciprocals], like=linear.input)
        linear.matmul.replace_input_with(0, scaled)


def fold_into_values(projections: Sequence[SharedWeight]) -> list[SharedWeight]:
    """Smooth the inputs of attention outputs by scaling the projections of the values instead.

    Those inputs are weighted means of values, so that dividing the values divides them.

    Returns:
        The attention outputs that were smoothed.
    """
    return _fold(projections, _values_projection)


def fold_into_gated(projections: Sequence[SharedWeight]) -> list[SharedWeight]:
    """Smooth the inputs of `down` in gated feed-forward blocks by scaling `up`, which they are linear in.

    Returns:
        The projections `down` that were smoothed.
    """
    return _fold(projections, _gated_projection)


def _fold(projections: Sequence[SharedWeight], source_of: Callable[[Linear], ir.Value | None]) -> list[SharedWeight]:
    """Smooth the inputs of projections by scaling the last outputs of the projections that they come from.

    Args:
        projections: all quantized projections.
        source_of: returns the output of the projection whose last columns a projection's inputs are linear in; `None`
            if there is none. A projection is left out if its sources are not all quantized, or feed another one.

    Returns:
        Those that were smoothed.
    """
    by_output = {linear.output: projection for projection in projections for linear in projection.linears}
    folds: list[tuple[SharedWeight, list[SharedWeight]]] = []
    for projection in projections:
        sources = [source_of(linear) for linear in projection.linears]
        if all(source in by_output for source in sources):
            values = [by_output[source] for source in sources if source is not None]
            folds.append((projection, [value for i, value in enumerate(values) if value not in values[:i]]))
    uses = Counter(id(value) for _, values in folds for value in values)
    folds = [(output, values) for output, values in folds if all(uses[id(value)] == 1 for value in values)]
    for output, values in folds:
        factors = smoothing_factors(output.weight, output.input_abs_max)
        output.scale_inputs(factors)
        for value in values:
            value.scale_outputs(factors, slice(-len(factors), None))  # values, or up, come last in a merged projection
    return [output for output, _ in folds]


def _values_projection(linear: Linear) -> ir.Value | None:
    """Return the output of the projection whose values the attention before `linear` reads; `None` if there is none."""
    try:
        return producer(producer(before_pruning(linear.input), "Attention").inputs[2], "Split").inputs[0]
    except NoMatch:
        return None


def _gated_projection(linear: Linear) -> ir.Value | None:
    """Return the output of the projection `gate_up` whose gated half `linear` reads; `None` if there is none."""
    try:
        split = producer(producer(linear.input, "Mul").inputs[1], "Split")
    except NoMatch:
        return None
    return split.inputs[0] if len(split.outputs) == 2 else None
