"""Static ranges of quantized activations: scale and zero point of the calibrated inputs of a matmul."""

import numpy as np

from bert_export.quantization.calibration import Activations
from bert_runtime.numerics import Float32Array

__all__ = ["fake_quantize", "quantization_parameters"]


def quantization_parameters(inputs: Activations) -> tuple[np.float32, np.uint8]:
    """Return the scale and zero point of the uint8 range that holds all inputs, and zero exactly."""
    low, high = min(0.0, float(inputs.low.min())), max(0.0, float(inputs.high.max()))
    scale = np.float32(max(high - low, 1e-8) / 255)
    return scale, np.uint8(np.clip(np.rint(-low / scale), 0, 255))


def fake_quantize(samples: Float32Array, scale: np.float32, zero_point: np.uint8) -> Float32Array:
    """Quantize and dequantize the samples."""
    steps = np.clip(np.rint(samples / scale) + np.float32(zero_point), 0, 255)
    rounded: Float32Array = (steps - np.float32(zero_point)) * scale
    return rounded
