"""Quantize a weight for its calibrated inputs: their static ranges, GPTQ, and a bias for the mean error."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_export.quantization.calibration import Activations
from bert_export.quantization.ranges import fake_quantize, quantization_parameters
from bert_export.quantization.weights import gptq_quantize
from bert_runtime.numerics import Float32Array

__all__ = ["CalibratedWeight", "quantize_for_inputs"]


class CalibratedWeight(NamedTuple):
    """A weight that was quantized for its inputs."""

    quantized: NDArray[np.int8]
    """[in, out]."""
    scales: Float32Array
    """The scale of each output channel [out]."""
    bias_shift: Float32Array
    """Correction that is added to the bias [out]."""
    input_parameters: list[tuple[np.float32, np.uint8]]
    """The scale and zero point of each of the inputs."""


def quantize_for_inputs(weight: Float32Array, inputs: Sequence[Activations], bits: int) -> CalibratedWeight:
    """Quantize a weight with GPTQ for its inputs as they are quantized.

    Args:
        weight: float32 `[in, out]`.
        inputs: the inputs of each projection with that weight; each has a range of its own.
        bits: 7 or 8.
    """
    parameters = [quantization_parameters(activations) for activations in inputs]
    samples = np.concatenate([activations.samples for activations in inputs])
    rounded = np.concatenate(
        [
            fake_quantize(activations.samples, scale, zero_point)
            for activations, (scale, zero_point) in zip(inputs, parameters, strict=True)
        ]
    )
    quantized, scales = gptq_quantize(weight, rounded, bits)
    # Rounding errors that do not average out shift the outputs by a constant, for which the bias compensates.
    shift = samples.mean(axis=0) @ weight - rounded.mean(axis=0) @ (quantized * scales)
    return CalibratedWeight(quantized, scales, shift, parameters)
