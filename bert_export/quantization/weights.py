"""Quantize weights to signed 8-bit integers with one scale per output channel."""

import numpy as np
from numpy.typing import NDArray

from bert_export.errors import ExportError
from bert_models import EncoderConfig
from bert_runtime.numerics import Float32Array

__all__ = ["MAX_QUANTIZED", "choose_weight_bits", "gptq_quantize", "quantize_weight"]

MAX_QUANTIZED = {8: 127, 7: 64}
"""The maximum quantized weight by the number of bits. With 64, AVX2's sum of two u8 × s8 products never saturates its
16 bits: 2 · 255 · 64 < 2¹⁵."""

_DAMPING = 0.01
"""Share of the Hessian's mean diagonal that is added to the diagonal, as in GPTQ's "Cholesky reformulation"."""

_BLOCK_SIZE = 128
"""Channels that are rounded before their errors update all remaining ones, as in GPTQ's "lazy batch-updates"."""


def choose_weight_bits(config: EncoderConfig, wanted: int | None) -> int:
    """Return the bits of INT8's weights: `wanted`, or by default 8, but 7 where layers share their weights.

    Without VNNI, ONNX Runtime makes 8-bit weights unsigned to multiply them without saturation. That fails with
    "Attempt to replace the existing tensor" for a weight that two operators read (1.31.1). It takes 7-bit weights as
    they are.

    Raises:
        ExportError: `wanted` is neither 7 nor 8, or is 8 where layers share their weights.
    """
    shared = config.num_layer_groups not in (None, config.num_layers)
    if wanted is None:
        return 7 if shared else 8
    if wanted not in MAX_QUANTIZED:
        raise ExportError(f"expected weight_bits of {', '.join(map(str, sorted(MAX_QUANTIZED)))}, found {wanted}")
    if shared and wanted == 8:
        raise ExportError(
            f"INT8 weights of 8 bits do not load on processors without VNNI where layers share them, as in "
            f"{config.family}; leave --weight-bits out, or give 7"
        )
    return wanted


def channel_scales(weight: Float32Array, max_quantized: int) -> Float32Array:
    """Return the scale of each output channel [out] that maps its largest weight to `max_quantized`; 1 if all are 0."""
    scale = np.abs(weight).max(axis=0) / np.float32(max_quantized)
    return np.where(scale > 0, scale, np.float32(1)).astype(np.float32)


def quantize_weight(weight: Float32Array, bits: int = 8) -> tuple[NDArray[np.int8], Float32Array]:
    """Round each weight to the nearest step: `weight ≈ quantized · scale`.

    Args:
        weight: float32 `[in, out]`.
        bits: 7 or 8.

    Returns:
        The quantized weight, int8 `[in, out]`, and the scale of each output channel, float32 `[out]`; 1 for a channel
        of zeros.
    """
    limit = MAX_QUANTIZED[bits]
    scale = channel_scales(weight, limit)
    return np.clip(np.rint(weight / scale), -limit, limit).astype(np.int8), scale


def gptq_quantize(weight: Float32Array, inputs: Float32Array, bits: int = 8) -> tuple[NDArray[np.int8], Float32Array]:
    """Quantize like `quantize_weight`, but let later weights compensate for the rounding errors of earlier ones.

    This is GPTQ (Frantar et al., arXiv:2210.17323): it minimizes the squared error of `inputs @ weight`, rounding one
    input channel at a time and updating those that are left (equations 2 and 3). It takes the updates from the Cholesky
    factor of the inverse Hessian (the paper's "Cholesky reformulation"). Channels are rounded in the order of falling
    input power.

    Args:
        weight: float32 `[in, out]`.
        inputs: sampled inputs of the projection, float32 `[n, in]`.
        bits: 7 or 8.

    Returns:
        The quantized weight, int8 `[in, out]`, and the scale of each output channel, float32 `[out]`.
    """
    limit = MAX_QUANTIZED[bits]
    scale = channel_scales(weight, limit)
    hessian = inputs.T.astype(np.float64) @ inputs.astype(np.float64)
    power = np.diag(hessian).copy()
    if not power.any():
        return quantize_weight(weight, bits)
    hessian[np.diag_indices_from(hessian)] += _DAMPING * power.mean()
    order = np.argsort(-power, kind="stable")
    upper = np.linalg.cholesky(np.linalg.inv(hessian[np.ix_(order, order)])).T
    remaining = weight[order].astype(np.float64)
    rounded = np.empty_like(remaining)
    for start in range(0, len(remaining), _BLOCK_SIZE):
        stop = min(start + _BLOCK_SIZE, len(remaining))
        errors = np.empty((stop - start, remaining.shape[1]))
        for i in range(start, stop):
            rounded[i] = np.clip(np.rint(remaining[i] / scale), -limit, limit)
            error = errors[i - start] = (remaining[i] - rounded[i] * scale) / upper[i, i]
            remaining[i + 1 : stop] -= np.outer(upper[i, i + 1 : stop], error)
        remaining[stop:] -= upper[start:stop, stop:].T @ errors
    quantized = np.empty(weight.shape, dtype=np.int8)
    quantized[order] = rounded.astype(np.int8)
    return quantized, scale
