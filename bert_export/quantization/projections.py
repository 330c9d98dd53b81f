"""Find the projections of an encoder, and group those that share a weight."""

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
    """Return how many projections a fused encoder has.

    Each layer has query, key and value merged, attention output, and feed-forward up and down. A last layer that is
    reduced to the first token has a query of its own. Narrow embeddings have one more projection.

    Args:
        config: the model's configuration.
        fusions: the counts that `fuse` returned.
    """
    count = {name: numbers["found"] for name, numbers in fusions.items()}
    embeddings = int(config.embedding_size is not None)
    return embeddings + count["qkv_projection"] + 2 * count["kv_projection"] + 3 * count["attention"]


def encoder_linears(graph: ir.Model, keep_fp32: Sequence[str] = ()) -> list[Linear]:
    """Return the encoder's projections in topological order, without modules whose name ends in one of `keep_fp32`."""
    scopes = ((linear, scope(linear.matmul)) for linear in linears(graph))
    return [linear for linear, name in scopes if name.startswith("encoder.") and not name.endswith(tuple(keep_fp32))]


@dataclass(kw_only=True, eq=False)
class SharedWeight:
    """Projections that share a weight, as ALBERT's layers do. It changes until it is quantized."""

    linears: list[Linear]
    weight: Float32Array
    """[in, out]."""
    bias: Float32Array
    """[out]."""
    inputs: list[Activations]
    """The inputs of each of `linears`."""

    @property
    def samples(self) -> Float32Array:
        """The samples of all inputs [n, in]."""
        return np.concatenate([inputs.samples for inputs in self.inputs])

    @property
    def input_abs_max(self) -> Float32Array:
        """The maximum absolute value of each input channel [in]."""
        return np.max([np.maximum(-inputs.low, inputs.high) for inputs in self.inputs], axis=0)

    def scale_inputs(self, factors: Float32Array) -> None:
        """Divide the inputs by `factors` [in] and multiply the weight by them, which leaves the product as it is."""
        self.weight = self.weight * factors[:, None]
        self.inputs = [inputs.divided(factors) for inputs in self.inputs]

    def scale_outputs(self, factors: Float32Array, columns: slice) -> None:
        """Divide the outputs in `columns` by `factors`."""
        self.weight, self.bias = self.weight.copy(), self.bias.copy()
        self.weight[:, columns] /= factors
        self.bias[columns] /= factors


def shared_weights(projections: Sequence[Linear], activations: Mapping[str, Activations]) -> list[SharedWeight]:
    """Group projections by weight and bias, with the activations that `measure_activations` returned for them."""
    groups: dict[tuple[ir.Value, ir.Value | None], list[Linear]] = {}
    for linear in projections:
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
