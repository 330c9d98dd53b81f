"""Choose the migration strength of smoothing before a feed-forward block by the error that it leaves behind the block.

A large strength gives activations fine steps and weights coarse ones. The error of `up` alone would not tell which is
better: behind GELU or ReLU most of its outputs are close to 0, whatever their errors, and some of the others are read
by large weights.
"""

import numpy as np

from bert_export.quantization.calibration import Activations
from bert_export.quantization.outlier_splitting import FeedForwardBlock
from bert_export.quantization.ranges import fake_quantize, quantization_parameters
from bert_export.quantization.smoothing import smoothing_factors
from bert_export.quantization.weights import quantize_weight
from bert_runtime.numerics import Float32Array

__all__ = ["STRENGTHS", "choose_strength"]

STRENGTHS = (0.6, 0.7, 0.8, 0.9)
"""Migration strengths to choose from. In 11 of all-mpnet-base-v2's 12 blocks, 0.7 or 0.8 leaves the smallest error, and
0.9 up to 2.8 times as much; 0.5 and 1.0 are best in none."""

_MAX_SAMPLES = 256
"""Tokens on which strengths are compared (a judgement): with hundreds of outputs, these give many errors."""


def choose_strength(block: FeedForwardBlock, bits: int = 8) -> float:
    """Return the strength with the smallest error of a block's outputs on the sampled tokens.

    Weights are rounded to nearest: GPTQ, which comes later, fits the samples.

    Args:
        block: a block whose outlier channels are split already.
        bits: bits of the weights, 7 or 8.
    """
    return min(STRENGTHS, key=lambda strength: _output_error(block, strength, bits))


def _output_error(block: FeedForwardBlock, strength: float, bits: int) -> float:
    """Return the variance of the errors of a block's outputs, summed over them; the bias takes back their mean."""
    up, down = block.up, block.down
    factors = smoothing_factors(up.weight, up.input_abs_max, strength)
    quantized, scales = quantize_weight(up.weight * factors[:, None], bits)
    weight = quantized * scales
    ceiling = np.float32(max(float(inputs.high.max()) for inputs in down.inputs))  # where quantization saturates

    def activate(products: Float32Array) -> Float32Array:
        return np.minimum(block.activation(products + up.bias), ceiling)

    variance = 0.0
    for inputs in up.inputs:
        samples = inputs.samples[:: -(-len(inputs.samples) * len(up.inputs) // _MAX_SAMPLES)]
        errors = activate(_rounded(inputs, samples, factors) @ weight) - activate(samples @ up.weight)
        variance += float((errors @ down.weight).var(axis=0).sum())
    return variance


def _rounded(inputs: Activations, samples: Float32Array, factors: Float32Array) -> Float32Array:
    """Divide samples of the inputs by the smoothing factors, then quantize and dequantize them."""
    return fake_quantize(samples / factors, *quantization_parameters(inputs.divided(factors)))
