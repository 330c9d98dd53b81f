"""Outlier channels divided by a factor, and the weights that read them multiplied by it.

This is SmoothQuant (arXiv:2211.10438). Where attention comes before, the division is part of the values' projection and
costs nothing. A LayerNorm's output also feeds the residual, so that there the division is a `Mul` of [B, S, H].
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import Linear, NoMatch, add_initializer, insert_before, producer
from bert_export.quantization.projections import SharedWeight
from bert_runtime.numerics import Float32Array

__all__ = ["SMOOTHING", "fold_into_values", "smooth", "smoothing_factors"]

SMOOTHING = 0.9
"""How much of a channel's range moves into the weights: 0 none, 1 all, after which all channels have one range."""


def smoothing_factors(weight: Float32Array, largest: Float32Array, strength: float = SMOOTHING) -> Float32Array:
    """What to divide each input by [in]: `largest^strength / max|weight|^(1 - strength)`, 1 in geometric mean.

    `largest` [in] is the input's largest absolute value, `weight` [in, out] what reads it.
    """
    reach = np.maximum(largest.astype(np.float64), 1e-5 * max(float(largest.max()), 1e-30))
    rows = np.abs(weight).max(axis=1).astype(np.float64)
    rows = np.maximum(rows, 1e-5 * max(float(rows.max()), 1e-30))
    exponents = strength * np.log(reach) - (1 - strength) * np.log(rows)
    factors: Float32Array = np.exp(exponents - exponents.mean()).astype(np.float32)
    return factors


def smooth(projection: SharedWeight) -> None:
    """Smooths what a projection reads by a `Mul` before it."""
    factors = smoothing_factors(projection.weight, projection.largest)
    projection.scale_inputs(factors)
    graph = projection.linears[0].matmul.graph
    assert isinstance(graph, ir.Graph)
    reciprocals = add_initializer(graph, f"{projection.linears[0].weight.name}.smoothing", 1 / factors)
    for linear in projection.linears:
        (scaled,) = insert_before(linear.matmul, "Mul", [linear.input, reciprocals], like=linear.input)
        linear.matmul.replace_input_with(0, scaled)


def fold_into_values(projections: Sequence[SharedWeight]) -> list[SharedWeight]:
    """Smooths what attention outputs read, and returns these: their inputs are means of values, which can be divided.

    An output is left out where its values are not all quantized, or feed another output as well.
    """
    by_output = {linear.output: each for each in projections for linear in each.linears}
    folds: list[tuple[SharedWeight, list[SharedWeight]]] = []
    for each in projections:
        sources = [_values_projection(linear) for linear in each.linears]
        if all(source in by_output for source in sources):
            values = [by_output[source] for source in sources if source is not None]
            folds.append((each, [value for i, value in enumerate(values) if value not in values[:i]]))
    uses = Counter(id(value) for _, values in folds for value in values)
    folds = [(each, values) for each, values in folds if all(uses[id(value)] == 1 for value in values)]
    for each, values in folds:
        factors = smoothing_factors(each.weight, each.largest)
        each.scale_inputs(factors)
        for value in values:
            value.scale_outputs(factors, slice(-len(factors), None))  # values come last in a merged projection
    return [each for each, _ in folds]


def _values_projection(linear: Linear) -> ir.Value | None:
    """The output of the projection that gives the values whose attention this one reads; `None` if it reads others."""
    try:
        return producer(producer(linear.input, "Attention").inputs[2], "Split").inputs[0]
    except NoMatch:
        return None
