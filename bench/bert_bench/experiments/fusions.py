"""What each fusion is worth: the same weights after each stage of the export, timed in one interleaved run.

python -m bert_bench.experiments.fusions --checkpoint CKPT --output FILE
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import numpy as np
import onnx_ir as ir

from bert_bench.experiments.harness import time_interleaved, write_result
from bert_bench.timing_statistics import paired_speedup
from bert_export.capture import capture
from bert_export.fusion import add_padding_branch, fuse
from bert_export.fusion.attention import fuse_attention
from bert_export.fusion.first_token_only import fuse_first_token_only
from bert_export.fusion.merge_qkv import merge_qkv
from bert_export.kernel_functions import outline_kernels
from bert_export.onnx_graph import operators, tidy
from bert_export.quantization import expected_projections, measure_activations, quantize, quantize_dynamic
from bert_export.samples import built_in_calibration
from bert_models import load_model, open_checkpoint
from bert_runtime.cpu.native_kernels import kernel_names
from bert_runtime.cpu.session import Session
from bert_runtime.machine import available_cores
from bert_runtime.tasks import SentenceEmbedding
from bert_runtime.tokenization import Batch

__all__ = ["main"]

_SHAPES = ((1, 16), (1, 64), (1, 128), (1, 384), (8, 128))


def _stages(checkpoint: Path) -> Iterator[tuple[str, ir.Model]]:
    """The graph after each stage. CLS pooling, so that the reduction to the first row applies."""
    source = open_checkpoint(checkpoint)
    task = SentenceEmbedding(dimensions=source.config.hidden_size, pooling="cls")
    model = load_model(source, task)
    yield "captured at opset 20: attention in parts", capture(model, opset=20)
    graph = capture(model)
    yield "captured at opset 23: Attention on [B, A, S, D]", graph.clone()
    for node in operators(graph, "Attention"):
        fuse_attention(node)
    tidy(graph)
    yield "+ Attention on [B, S, H]", graph.clone()
    merged = graph.clone()
    for node in operators(merged, "Attention"):
        merge_qkv(node)
    tidy(merged)
    yield "+ one projection for query, key and value", merged
    fuse_first_token_only(graph)
    for node in operators(graph, "Attention"):
        merge_qkv(node)
    tidy(graph)
    yield "+ last layer for the first row alone", graph.clone()
    quantized = capture(model)
    counts = fuse(quantized, source.config, task)
    if kernel_names():
        yield "the same in FP32 with kernels of our own", outline_kernels(add_padding_branch(quantized, counts)[0])[0]
    expected = expected_projections(source.config, counts)
    dynamic = quantized.clone()
    quantize_dynamic(dynamic, expected)
    yield "+ INT8 without calibration: DynamicQuantizeMatMul", dynamic
    tokenizer = source.text_tokenizer(None, task.windows)
    texts = built_in_calibration(task, tokenizer)
    quantize(quantized, expected, measure_activations(quantized, texts.batches(tokenizer), texts.headroom))
    yield "+ INT8 with calibration: QuantizeLinear, MatMulIntegerToFloat", quantized
    branched, _ = add_padding_branch(quantized, counts)
    yield "+ INT8 with a branch for batches without padding", branched
    if kernel_names():
        yield "+ INT8 with kernels of our own", outline_kernels(branched)[0]


@click.command(help=__doc__)
@click.option("--checkpoint", type=click.Path(path_type=Path), required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--rounds", type=int, default=25, show_default=True)
def main(checkpoint: Path, output: Path, rounds: int) -> None:
    """Times every stage at every shape, writes the result."""
    sessions = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, graph) in enumerate(_stages(checkpoint)):
            path = Path(scratch) / f"{number}.onnx"
            ir.save(graph, path)
            sessions[name] = Session(path, "embedding", available_cores(), int8="INT8" in name)
        shapes = {}
        for rows, tokens in _SHAPES:
            ones = np.ones((rows, tokens), dtype=np.int64)
            batch = Batch(ones * 2000, ones, ones * 0)
            calls = max(1, round(60 / (rows * tokens / 20)))
            runs = {name: partial(session.run, batch) for name, session in sessions.items()}
            timings = time_interleaved(runs, rounds, calls)
            baseline = next(iter(timings.values()))
            shapes[f"{rows}x{tokens}"] = {
                name: {"p50_ms": round(t.p50_ms, 4), "speedup": round(paired_speedup(t, baseline).median, 3)}
                for name, t in timings.items()
            }
            click.echo(f"{rows}x{tokens}: {shapes[f'{rows}x{tokens}']}")
    write_result(output, {"what": "sessions of one process, threads stop spinning between calls", "shapes": shapes})


if __name__ == "__main__":
    main()
