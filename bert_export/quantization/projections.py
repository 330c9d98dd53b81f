"""The projections of an encoder: which there are, and those that share a weight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import FusionCounts, Linear, linears, scope
from bert_export.quantization.calibration import Activations
from bert_models import EncoderConfig
from bert_runtime.numerics import Float32Array

__all__ = ["SharedWeight", "encoder_linears", "expected_projections", "shared_weights"]


def expected_projections(config: EncoderConfig, fusions: FusionCounts) -> int:
    """How many projections a fused encoder has: merged ones, attention output, and feed-forward up and down per layer.

    A layer reduced to its first row projects the query on its own. Narrow embeddings are projected once more.
    """
    count = {name: each["found"] for name, each in fusions.items()}
    embeddings = int(config.embedding_size is not None)
    return embeddings + count["qkv_projection"] + 2 * count["kv_projection"] + 3 * count["attention"]


def encoder_linears(model: ir.Model, keep_fp32: Sequence[str] = ()) -> list[Linear]:
    """The encoder's projections in topological order, but for modules whose name ends in one of `keep_fp32`."""
    scopes = ((linear, scope(linear.matmul)) for linear in linears(model))
    return [each for each, name in scopes if name.startswith("encoder.") and not name.endswith(tuple(keep_fp32))]


@dataclass(kw_only=True, eq=False)
class SharedWeight:
    """Projections with one weight (ALBERT's layers share theirs), as they change on their way to INT8."""

    linears: list[Linear]
    weight: Float32Array
    """What the inputs are multiplied with [in, out]."""
    bias: Float32Array
    """[out]."""
    inputs: list[Activations]
    """What each of `linears` reads."""

    @property
    def samples(self) -> Float32Array:
        """Sampled rows of all inputs [n, in]."""
        return np.concatenate([each.samples for each in self.inputs])

    @property
    def largest(self) -> Float32Array:
        """Largest absolute value in each channel of the inputs [in]."""
        return np.max([np.maximum(-each.low, each.high) for each in self.inputs], axis=0)

    def scale_inputs(self, factors: Float32Array) -> None:
        """Inputs divided by `factors` [in] from now on, and the weight multiplied: the same product."""
        self.weight = self.weight * factors[:, None]
        self.inputs = [each.divided(factors) for each in self.inputs]

    def scale_outputs(self, factors: Float32Array, columns: slice) -> None:
        """Divides some of the outputs by `factors`."""
        self.weight, self.bias = self.weight.copy(), self.bias.copy()
        self.weight[:, columns] /= factors
        self.bias[columns] /= factors


def shared_weights(found: Sequence[Linear], activations: Mapping[str, Activations]) -> list[SharedWeight]:
    """The projections grouped by weight and bias, with what `measure_activations` saw of their inputs."""
    groups: dict[tuple[ir.Value, ir.Value | None], list[Linear]] = {}
    for linear in found:
        groups.setdefault((linear.weight, linear.bias), []).append(linear)
    return [
        SharedWeight(
            linears=group,
            weight=group[0].weight_array,
            bias=group[0].bias_array,
            inputs=[activations[str(linear.input.name)] for linear in group],
        )
        for group in groups.values()
    ]
