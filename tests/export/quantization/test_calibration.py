"""Calibrated INT8 on toy models with planted outliers, and the algorithms that remove them."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from bert_export.calibration_texts import built_in_calibration
from bert_export.capture import capture
from bert_export.fusion import fuse
from bert_export.parity import probe_batches
from bert_export.quantization import expected_projections, measure_activations, quantize, quantize_dynamic
from bert_export.quantization.outlier_splitting import find_best_split
from bert_export.quantization.smoothing import smoothing_factors
from bert_export.quantization.weights import gptq_quantize, quantize_weight
from bert_models import EncoderConfig, TaskModel, load_model, open_checkpoint
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import Batch, TextTokenizer, pad

from ..toy_models import CLS, MEAN, captured, graph_runner, toy_model

CONFIG = EncoderConfig(
    family="bert", vocab_size=61, hidden_size=24, num_layers=2, num_heads=4, intermediate_size=384, max_positions=32,
    type_vocab_size=2,
)  # fmt: skip
Run = Callable[[Batch], FloatArray]
Plant = Callable[[TaskModel], None]


def plant_norm_outliers(model: TaskModel) -> None:
    """Make one channel of every LayerNorm after attention 40 times as large, and the weights that read it smaller."""
    for layer in model.encoder.layers:
        layer.attention_norm.weight[3] *= 40
        layer.feed_forward.up.weight[:, 3] /= 40


def plant_feed_forward_outliers(model: TaskModel) -> None:
    """Make one channel of every feed-forward block always near 25, and the weights that read it small."""
    for layer in model.encoder.layers:
        layer.feed_forward.up.bias[5] = 25
        layer.feed_forward.down.weight[:, 5] /= 25


def plant_value_outliers(model: TaskModel) -> None:
    """Make one channel of all values 50 times as large, and the weights that read it smaller."""
    for layer in model.encoder.layers:
        layer.attention.value.weight[7] *= 50
        layer.attention.value.bias[7] *= 50
        layer.attention.output.weight[:, 7] /= 50


def random_batches(model: TaskModel, seeds: range) -> list[Batch]:
    return [batch for seed in seeds for batch in probe_batches(model, model.config.max_tokens, seed).values()]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Plant], tuple[TaskModel, dict[str, Run]]]:
    """Return the model with outliers, and run functions of its graph: `fp32`, `dynamic` and calibrated `static`."""

    @cache
    def make(plant: Plant) -> tuple[TaskModel, dict[str, Run]]:
        model = toy_model(CLS, CONFIG)
        with torch.no_grad():
            plant(model)
        graph = capture(model)
        expected = expected_projections(CONFIG, fuse(graph, CONFIG, CLS))
        dynamic, static = graph.clone(), graph.clone()
        quantize_dynamic(dynamic, expected)
        quantize(static, expected, measure_activations(graph, random_batches(model, range(100, 110))))
        folder = tmp_path_factory.mktemp("graphs")
        named = {"fp32": graph, "dynamic": dynamic, "static": static}
        return model, {name: graph_runner(variant, folder / f"{name}.onnx") for name, variant in named.items()}

    return make


@pytest.mark.parametrize("plant", [plant_norm_outliers, plant_feed_forward_outliers, plant_value_outliers])
@pytest.mark.int8_operators
def test_calibration_halves_the_drift_that_outliers_cause(
    plant: Plant, graphs: Callable[[Plant], tuple[TaskModel, dict[str, Run]]]
) -> None:
    model, run = graphs(plant)
    batches = random_batches(model, range(3))  # other batches than those it was calibrated on
    drift = {
        name: float(np.mean([np.abs(run[name](batch) - run["fp32"](batch)).mean() for batch in batches]))
        for name in ("dynamic", "static")
    }
    assert drift["static"] < drift["dynamic"] / 2, drift


@pytest.mark.int8_operators
def test_prediction_does_not_depend_on_the_rest_of_the_batch(
    graphs: Callable[[Plant], tuple[TaskModel, dict[str, Run]]],
) -> None:
    model, run = graphs(plant_norm_outliers)
    (batch,) = (batch for name, batch in probe_batches(model, 32).items() if name == "right-padded")
    length = int(batch.attention_mask[1].sum())
    alone = Batch(*(array[1:2, :length] for array in batch))
    change = {name: np.abs(run[name](batch)[1] - run[name](alone)[0]).max() for name in ("dynamic", "static")}
    assert change["static"] < 1e-5 < 1e-4 < change["dynamic"], change


def test_padding_is_not_measured_and_headroom_widens_ranges(
    graphs: Callable[[Plant], tuple[TaskModel, dict[str, Run]]],
) -> None:
    model, graph = toy_model(MEAN, CONFIG), captured(MEAN, CONFIG)
    fuse(graph, CONFIG, MEAN)
    batch = probe_batches(model, 32)["right-padded"]
    singles = [Batch(*(array[i : i + 1, : batch.attention_mask[i].sum()] for array in batch)) for i in range(4)]
    padded, exact = measure_activations(graph, [batch]), measure_activations(graph, singles)
    wide = measure_activations(graph, singles, headroom=1.5)
    assert len(exact) == 8
    for name, found in exact.items():
        assert len(found.samples) == batch.attention_mask.sum()
        for side in ("low", "high"):
            assert np.abs(getattr(padded[name], side) - getattr(found, side)).max() < 1e-5
            assert np.allclose(getattr(wide[name], side), 1.5 * getattr(found, side))


@pytest.mark.parametrize(("bits", "limit"), [(8, 127), (7, 64)])
def test_rounded_weights_are_within_half_a_step(bits: int, limit: int) -> None:
    weight = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32) * np.logspace(
        -3, 3, 7, dtype=np.float32
    )
    quantized, scale = quantize_weight(weight, bits)
    assert quantized.dtype == np.int8
    assert scale.dtype == np.float32
    assert np.abs(quantized).max(axis=0).tolist() == [limit] * 7
    assert (np.abs(quantized * scale - weight) <= scale * 0.5001).all()


@pytest.mark.parametrize("inputs", [np.zeros((3, 4)), np.ones((3, 4))], ids=["no inputs", "inputs"])
def test_channel_of_zeros_stays_zero(inputs: FloatArray) -> None:
    for quantized, scale in (
        quantize_weight(np.zeros((4, 2), dtype=np.float32)),
        gptq_quantize(np.zeros((4, 2), dtype=np.float32), inputs),
    ):
        assert not quantized.any()
        assert scale.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("bits", "limit"), [(8, 127), (7, 64)])
def test_gptq_reduces_the_output_error(bits: int, limit: int) -> None:
    """200 input channels of rank 20, since activations are correlated, and one that is always 0."""
    random = np.random.default_rng(0)
    inputs = (random.standard_normal((1000, 20)) @ random.standard_normal((20, 200))).astype(np.float32)
    inputs[:, 9] = 0
    weight = random.standard_normal((200, 30)).astype(np.float32)
    errors = []
    for quantized, scale in (quantize_weight(weight, bits), gptq_quantize(weight, inputs, bits)):
        assert quantized.dtype == np.int8
        assert np.abs(quantized).max() <= limit
        errors.append(np.square(inputs @ (quantized * scale - weight)).mean())
    assert errors[1] < errors[0] / 4


def test_smoothing_factors_equalize_the_inputs() -> None:
    weight = np.ones((3, 2), dtype=np.float32)
    abs_max = np.array([1, 100, 0], dtype=np.float32)
    even = smoothing_factors(weight, abs_max, 1.0)
    assert np.isfinite(even).all()
    assert even[1] / even[0] == pytest.approx(100)
    assert smoothing_factors(weight, abs_max, 0.0).tolist() == pytest.approx([1, 1, 1])
    assert smoothing_factors(weight * [[1], [16], [1]], abs_max, 0.5)[1] / even[0] < 100


@pytest.mark.parametrize(("name", "tolerance"), [("relu", 1e-5), ("gelu", 0.35)])
def test_outlier_channel_is_split(name: str, tolerance: float) -> None:
    """200 channels up to 2, one at 20 for one token in ten; its parts add up to it."""
    random = np.random.default_rng(0)
    hidden = random.standard_normal((500, 200)).astype(np.float32).clip(-2, 2)
    hidden[::10, 7] = 20 + random.standard_normal(50)

    def activation(h: FloatArray) -> FloatArray:
        result: FloatArray = getattr(torch.nn.functional, name)(torch.from_numpy(h)).numpy()
        return result

    channel_max = activation(hidden).max(axis=0)
    weight = random.standard_normal((200, 16)).astype(np.float32)
    candidates = np.argsort(-channel_max)[:48]
    split = find_best_split(weight, channel_max, -0.17, candidates, hidden[:, candidates], activation)
    assert np.flatnonzero(split.copies).tolist() == [7]
    assert split.copies[7] == 2
    assert split.ceiling == pytest.approx(channel_max[7] / 3)
    parts = [np.minimum(activation(hidden[:, 7] - part * split.ceiling), split.ceiling) for part in range(3)]
    assert np.abs(sum(parts) - activation(hidden[:, 7])).max() < tolerance


def test_channels_without_outliers_are_not_split() -> None:
    hidden = np.full((5, 200), 2, dtype=np.float32)
    weight = np.ones((200, 4), dtype=np.float32)
    candidates = np.arange(48)
    split = find_best_split(weight, hidden[0], 0.0, candidates, hidden[:, candidates], lambda h: np.maximum(h, 0))
    assert not split.copies.any()
    assert split.ceiling == 2


@pytest.mark.slow
@pytest.mark.pretrained
def test_calibration_reduces_the_drift_of_a_trained_model(pretrained_minilm: Path, tmp_path: Path) -> None:
    """Real outliers: cosines with FP32 on texts other than those it was calibrated on."""
    source = open_checkpoint(pretrained_minilm)
    task = source.task()
    model, tokenizer = load_model(source, task), source.text_tokenizer(128)
    graph = capture(model)
    expected = expected_projections(source.config, fuse(graph, source.config, task))
    texts, held_out = built_in_calibration(task, tokenizer).split()
    dynamic, static = graph.clone(), graph.clone()
    quantize_dynamic(dynamic, expected)
    quantize(static, expected, measure_activations(graph, texts.batches(task, tokenizer), texts.headroom))
    exact, *found = (
        embeddings(tokenizer, graph_runner(variant, tmp_path / f"{i}.onnx"), held_out)
        for i, variant in enumerate((graph, dynamic, static))
    )
    before, after = (1 - (exact * vectors).sum(axis=1).mean() for vectors in found)
    assert after < before / 3
    assert after < 0.003


def embeddings(tokenizer: TextTokenizer, run: Run, texts: Sequence[TextInput]) -> FloatArray:
    return np.concatenate([run(pad(windows, tokenizer.pad_token_id)) for windows in tokenizer.encode(texts)])
