"""The migration strength before a feed-forward block is the one with the smallest error behind the block."""

import numpy as np
import pytest
from numpy.typing import NDArray

from bert_export.quantization.calibration import Activations
from bert_export.quantization.outlier_splitting import FeedForwardBlock
from bert_export.quantization.projections import SharedWeight
from bert_export.quantization.smoothing_strength import STRENGTHS, choose_strength

Float32 = NDArray[np.float32]


def relu(h: Float32) -> Float32:
    return np.maximum(h, 0)


def projection(weight: Float32, bias: Float32, samples: Float32) -> SharedWeight:
    inputs = Activations(low=samples.min(axis=0), high=samples.max(axis=0), samples=samples)
    return SharedWeight(linears=[], weight=weight, bias=bias, inputs=[inputs])


def make_block(weight: Float32, bias: Float32, samples: Float32) -> FeedForwardBlock:
    """Return a block with random weights behind ReLU."""
    down = np.random.default_rng(1).normal(size=(weight.shape[1], 16)).astype(np.float32)
    hidden = relu(samples @ weight + bias)
    return FeedForwardBlock(projection(weight, bias, samples), projection(down, np.zeros(16, np.float32), hidden), relu)


@pytest.fixture
def samples() -> Float32:
    """Inputs of which a few channels reach far beyond the others, and hardly vary."""
    rng = np.random.default_rng(0)
    found: Float32 = rng.normal(size=(512, 64)).astype(np.float32)
    found[:, :4] = found[:, :4] * 0.1 + 60
    return found


def test_large_weights_of_outliers_ask_for_a_smaller_strength(samples: Float32) -> None:
    """The larger the weights that read outliers, the more steps smoothing takes from the other weights."""
    weight, bias = np.random.default_rng(2).normal(size=(64, 128)).astype(np.float32), np.zeros(128, np.float32)
    small = weight.copy()
    small[:4] /= 60
    assert choose_strength(make_block(weight, bias, samples)) == STRENGTHS[0]
    assert choose_strength(make_block(small, bias, samples)) == STRENGTHS[-1]


def test_errors_that_relu_removes_do_not_count(samples: Float32) -> None:
    """Outputs that are always 0 have no say, whatever their weights."""
    weight = np.random.default_rng(2).normal(size=(64, 640)).astype(np.float32)
    weight[:4, :128] /= 60
    alive = np.zeros(640, np.float32)
    dead = np.where(np.arange(640) < 128, alive, -10_000).astype(np.float32)
    assert choose_strength(make_block(weight, dead, samples)) > choose_strength(make_block(weight, alive, samples))
