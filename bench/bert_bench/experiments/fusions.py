"""Measure the speed-up of each fusion: the same weights after each stage of the export.

python -m bert_bench.experiments.fusions --checkpoint CKPT --output FILE

Every stage's graph is opened in ONNX Runtime in this process. Per shape, all stages are timed interleaved on one batch
without padding: 25 rounds, each starting with another stage. The result has the median latency and the median over the
rounds of the speed-up over the first stage.

Made bench/results/fusions.json, with MiniLM-L6.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import onnx_ir as ir

from bert_bench.experiments.harness import path_option, time_full_batch, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_export.calibration_texts import built_in_calibration
from bert_export.capture import capture
from bert_export.fusion import add_padding_branch, fuse
from bert_export.fusion.attention import fuse_attention
from bert_export.fusion.first_token_only import fuse_first_token_only
from bert_export.fusion.merge_qkv import merge_qkv
from bert_export.onnx_graph import operators, tidy
from bert_export.outline_kernels import lower_for_cpu
from bert_export.quantization import expected_projections, measure_activations, quantize, quantize_dynamic
from bert_models import Checkpoint, TaskModel, load_model, open_checkpoint
from bert_runtime.cpu.native_kernels import kernel_names
from bert_runtime.cpu.session import Session
from bert_runtime.machine import available_cores
from bert_runtime.tasks import SentenceEmbedding

__all__ = ["main", "results_table"]

_SHAPES = ((1, 16), (1, 64), (1, 128), (1, 384), (8, 128))
"""Sequences and tokens of the timed batches."""

_CALLS_TIMES_TOKENS = 1200
"""Calls per round times tokens per batch, so that a round takes about as long at every shape."""


def _stages(checkpoint: Path) -> Iterator[tuple[str, ir.Model]]:
    """Yield the name of each stage, which is its key in result files, and its graph; INT8 ones say so in the name."""
    source = open_checkpoint(checkpoint)
    # CLS pooling, so that the last layer can be computed for the first token only.
    task = SentenceEmbedding(dimensions=source.config.hidden_size, pooling="cls")
    model = load_model(source, task)
    yield from _fp32_stages(model)
    yield from _fused_stages(source, task, model)


def _fp32_stages(model: TaskModel) -> Iterator[tuple[str, ir.Model]]:
    yield "captured at opset 20: attention in parts", capture(model, opset=20)
    graph = capture(model)
    yield "captured at opset 23: Attention on [B, A, S, D]", graph.clone()
    for node in operators(graph, "Attention"):
        fuse_attention(node)
    tidy(graph)
    yield "+ Attention on [B, S, H]", graph.clone()
    merged = graph.clone()
    _merge_all_qkv(merged)
    yield "+ one projection for query, key and value", merged
    fuse_first_token_only(graph)
    _merge_all_qkv(graph)
    yield "+ last layer for the first row alone", graph


def _merge_all_qkv(graph: ir.Model) -> None:
    for node in operators(graph, "Attention"):
        merge_qkv(node)
    tidy(graph)


def _fused_stages(source: Checkpoint, task: SentenceEmbedding, model: TaskModel) -> Iterator[tuple[str, ir.Model]]:
    """Yield the stages after all fusions: native kernels and quantization."""
    graph = capture(model)
    counts = fuse(graph, source.config, task)
    if kernel_names():
        yield "the same in FP32 with native kernels", lower_for_cpu(graph, counts).graph
    expected = expected_projections(source.config, counts)
    dynamic = graph.clone()
    quantize_dynamic(dynamic, expected)
    yield "+ INT8 without calibration: DynamicQuantizeMatMul", dynamic
    tokenizer = source.text_tokenizer(None, task.windows)
    texts = built_in_calibration(task, tokenizer)
    quantize(graph, expected, measure_activations(graph, texts.batches(task, tokenizer), texts.headroom))
    yield "+ INT8 with calibration: QuantizeLinear, MatMulIntegerToFloat", graph
    yield "+ INT8 with a branch for batches without padding", add_padding_branch(graph, counts)[0]
    if kernel_names():
        yield "+ INT8 with native kernels", lower_for_cpu(graph, counts).graph


def results_table(result: Path) -> str:
    """Return the speed-ups in a result file as a Markdown table, one row per stage."""
    shapes = json.loads(result.read_text("utf-8"))["shapes"]
    stages = dict.fromkeys(name for engines in shapes.values() for name in engines)
    rows = [[name, *(f"{engines[name]['speedup']:.2f}×" for engines in shapes.values())] for name in stages]
    return markdown_table(["stage", *(shape.replace("x", "×") for shape in shapes)], rows)


@click.command(help=__doc__)
@path_option("--checkpoint", "Checkpoint folder.")
@path_option("--output", "Result file to write.")
@click.option("--rounds", type=int, default=25, show_default=True, help="Rounds of timing.")
def main(checkpoint: Path, output: Path, rounds: int) -> None:
    """Time every stage at every shape and write the result."""
    engines = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, graph) in enumerate(_stages(checkpoint)):
            path = Path(scratch) / f"{number}.onnx"
            ir.save(graph, path)
            engines[name] = Session(path, "embedding", available_cores(), int8="INT8" in name).run
        shapes = {}
        for sequences, tokens in _SHAPES:
            shape, calls = f"{sequences}x{tokens}", max(1, round(_CALLS_TIMES_TOKENS / (sequences * tokens)))
            shapes[shape] = time_full_batch(engines, sequences, tokens, rounds, calls)
            click.echo(f"{shape}: {shapes[shape]}")
    write_result(output, {"what": "sessions of one process, threads stop spinning between calls", "shapes": shapes})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
