"""Toy models with random weights, their graphs at each stage of the export, and a way to run those."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx_ir as ir
import onnxruntime
import torch

from bert_export.capture import capture
from bert_export.cuda import fuse_for_cuda
from bert_export.fusion import fuse
from bert_export.parity import probe_batches
from bert_export.quantization import Activations, measure_activations
from bert_models import FAMILIES, EncoderConfig, TaskModel
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import SentenceEmbedding, Task, TextClassification
from bert_runtime.tokenization import Batch

CONFIG = EncoderConfig(
    family="bert", vocab_size=61, hidden_size=24, num_layers=3, num_heads=4, intermediate_size=37, max_positions=32,
    type_vocab_size=2,
)  # fmt: skip
RELATIVE = FAMILIES["mpnet"].preset(
    "base", vocab_size=61, hidden_size=24, num_layers=3, num_heads=4, intermediate_size=37, max_positions=130
)
"""MPNet's: a position bias, for distances beyond the last bucket's first."""
DISENTANGLED = FAMILIES["deberta-v2"].preset(
    "base", vocab_size=61, hidden_size=24, num_layers=3, num_heads=4, intermediate_size=37, max_positions=70,
    position_buckets=16,
)  # fmt: skip
"""DeBERTa's: scores of relative positions, of which those beyond 8 tokens share buckets."""
MODERN = FAMILIES["modernbert"].preset(
    "base", vocab_size=61, hidden_size=24, num_layers=3, num_heads=4, intermediate_size=40, max_positions=60,
    local_layers=(1, 2), sliding_window=4, pad_token_id=0,
)  # fmt: skip
"""ModernBERT's: rotary positions, a gated feed-forward block, pre-norm, and local attention in two of three layers."""
CLASSIFIER = TextClassification(labels=("a", "b", "c"))
MEAN = SentenceEmbedding(dimensions=24)
CLS = SentenceEmbedding(dimensions=24, pooling="cls", normalize=False)


def toy_model(task: Task, config: EncoderConfig = CONFIG) -> TaskModel:
    """Return a model all of whose parameters matter."""
    torch.manual_seed(0)
    model = TaskModel(config, task).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@cache
def _captured(task: Task, config: EncoderConfig) -> ir.Model:
    return capture(toy_model(task, config))


def captured(task: Task, config: EncoderConfig = CONFIG) -> ir.Model:
    """Return a copy of the toy model's graph before any fusion."""
    return _captured(task, config).clone()


@cache
def fused(task: Task) -> tuple[TaskModel, ir.Model]:
    """Return a toy model and its fused graph, which tests share: clone it to change it."""
    graph = captured(task)
    fuse(graph, CONFIG, task)
    return toy_model(task), graph


def fused_for_cuda(task: Task) -> tuple[TaskModel, ir.Model]:
    """Return a toy model and a copy of its graph for CUDA, in FP32."""
    model, graph = fused(task)
    graph = graph.clone()
    fuse_for_cuda(graph, CONFIG)
    return model, graph


def graph_runner(graph: ir.Model, path: Path) -> Callable[[Batch], FloatArray]:
    """Save a graph to `path`, and return a function that runs it in ONNX Runtime without graph optimizations."""
    ir.save(graph, path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1  # threads of a toy's graph would spin on the cores of other tests
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    return lambda batch: session.run(None, {k: v for k, v in batch._asdict().items() if k in names})[0]


def probed_activations(model: TaskModel, graph: ir.Model) -> dict[str, Activations]:
    """Measure what the projections of the model's fused graph read in random batches, to calibrate INT8 with."""
    length = model.config.max_tokens
    batches = [batch for seed in range(1, 9) for batch in probe_batches(model, length, seed).values()]
    return measure_activations(graph, batches, headroom=1.3)
