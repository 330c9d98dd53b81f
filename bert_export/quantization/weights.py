"""Weights as signed 8-bit integers with one scale per output channel."""

import numpy as np
from numpy.typing import NDArray

from bert_export.errors import ExportError
from bert_models import EncoderConfig
from bert_runtime.numerics import Float32Array

__all__ = ["LIMITS", "choose_weight_bits", "gptq_quantize", "quantize_weight"]

LIMITS = {8: 127, 7: 64}
"""The largest weight by the number of bits. With 64, two products of AVX2 never leave 16 bits: 2 · 255 · 64 < 2¹⁵."""

_DAMPING = 0.01
"""Share of the mean squared input that is added to each, so that inputs which never vary do no harm."""

_BLOCK = 128


def choose_weight_bits(config: EncoderConfig, wanted: int | None) -> int:
    """The bits of INT8's weights: `wanted`, or by default 7 where layers share their weights and 8 elsewhere.

    Without VNNI, ONNX Runtime multiplies weights of 8 bits exactly only after it has made them unsigned, which fails
    with "Attempt to replace the existing tensor" for a weight that two operators read (1.31.1). Those of 7 bits it
    takes as they are. Raises `ExportError` for what cannot be had.
    """
    shared = config.num_layer_groups not in (None, config.num_layers)
    if wanted is None:
        return 7 if shared else 8
    if wanted not in LIMITS:
        raise ExportError(f"expected weight_bits of {', '.join(map(str, sorted(LIMITS)))}, found {wanted}")
    if shared and wanted == 8:
        raise ExportError(
            f"INT8 weights of 8 bits do not load on processors without VNNI where layers share them, as in "
            f"{config.family}; leave --weight-bits out, or give 7"
        )
    return wanted


def channel_scales(weight: Float32Array, limit: int) -> Float32Array:
    """The scale of each output channel [out] with which its largest weight becomes `limit`; 1 where all are zero."""
    scale = np.abs(weight).max(axis=0) / np.float32(limit)
    return np.where(scale > 0, scale, np.float32(1)).astype(np.float32)


def quantize_weight(weight: Float32Array, bits: int = 8) -> tuple[NDArray[np.int8], Float32Array]:
    """Each weight to the nearest step of 7 or 8 bits: float32 [in, out] → int8 [in, out], scales float32 [out].

    `weight ≈ quantized · scale`. A channel of zeros gets scale 1.
    """
    limit = LIMITS[bits]
    scale = channel_scales(weight, limit)
    return np.clip(np.rint(weight / scale), -limit, limit).astype(np.int8), scale


def gptq_quantize(weight: Float32Array, inputs: Float32Array, bits: int = 8) -> tuple[NDArray[np.int8], Float32Array]:
    """Like `quantize_weight`, but each rounding error is made up for by the weights that are rounded after it.

    Least squares on rows of `inputs` [n, in], in the order of falling input power (GPTQ, arXiv:2210.17323, equations 2
    and 3, with the Cholesky form of section 3.3).
    """
    limit = LIMITS[bits]
    scale = channel_scales(weight, limit)
    gram = inputs.T.astype(np.float64) @ inputs.astype(np.float64)
    power = np.diag(gram).copy()
    if not power.any():
        return quantize_weight(weight, bits)
    gram[np.diag_indices_from(gram)] += _DAMPING * power.mean()
    order = np.argsort(-power, kind="stable")
    upper = np.linalg.cholesky(np.linalg.inv(gram[np.ix_(order, order)])).T
    rest = weight[order].astype(np.float64)
    rounded = np.empty_like(rest)
    for start in range(0, len(rest), _BLOCK):
        stop = min(start + _BLOCK, len(rest))
        errors = np.empty((stop - start, rest.shape[1]))
        for i in range(start, stop):
            rounded[i] = np.clip(np.rint(rest[i] / scale), -limit, limit)
            error = errors[i - start] = (rest[i] - rounded[i] * scale) / upper[i, i]
            rest[i + 1 : stop] -= np.outer(upper[i, i + 1 : stop], error)
        rest[stop:] -= upper[start:stop, stop:].T @ errors
    quantized = np.empty(weight.shape, dtype=np.int8)
    quantized[order] = rounded.astype(np.int8)
    return quantized, scale
