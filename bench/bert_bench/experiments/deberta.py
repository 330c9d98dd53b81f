"""Compare DeBERTa-v3 with PyTorch and with ONNX Runtime's INT8 of transformers' graph, on random weights.

python -m bert_bench.experiments.deberta --size base --output FILE

No checkpoint of DeBERTa can be installed from a package index, so that weights are random, of the published sizes: they
say how fast each engine is, and nothing of what INT8 costs in quality. All engines get the weights of one sentence
classifier. transformers' graph is torch.onnx.export's of `DebertaV2ForSequenceClassification`, and its INT8 is
`onnxruntime.quantization.quantize_dynamic` per channel. Every engine runs in this process. Per shape, all are timed
interleaved on one batch without padding, each round starting with another engine. Outputs in FP32 must agree.

Made bench/results/deberta-base.json.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx_ir as ir
import torch

from bert_bench.errors import BenchError
from bert_bench.experiments.harness import open_in_onnxruntime, path_option, time_full_batch, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_export.capture import capture
from bert_export.fusion import fuse
from bert_export.outline_kernels import lower_for_cpu
from bert_export.parity import probe_batches
from bert_export.quantization import expected_projections, measure_activations, quantize
from bert_models import FAMILIES, TaskModel
from bert_runtime.cpu.session import Session
from bert_runtime.machine import available_cores
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import TextClassification
from bert_runtime.tokenization import Batch

__all__ = ["main", "results_table"]

_SHAPES = ((1, 16), (8, 16), (1, 128), (8, 128), (1, 384))
"""Sequences and tokens of the timed batches."""

_CALLS_TIMES_TOKENS = 256
"""Calls per round times tokens per batch, so that a round takes about as long at every shape."""

_OURS, _PEERS = "bert-export INT8", ("transformers, PyTorch FP32", "transformers, ONNX Runtime INT8")
"""Engines whose times the table divides."""

_MAX_DIFFERENCE = 1e-3
"""Largest absolute difference of a logit between FP32 engines."""

Run = Callable[[Batch], FloatArray]


def transformers_model(model: TaskModel) -> Any:
    """Return transformers' model with the weights of ours, in evaluation mode."""
    transformers: Any = import_module("transformers")
    family, task = FAMILIES[model.config.family], model.task.name
    config = transformers.DebertaV2Config(**family.dump_config(model.config), num_labels=2)
    theirs = transformers.DebertaV2ForSequenceClassification(config)
    theirs.load_state_dict({family.checkpoint_key(name, task): tensor for name, tensor in model.named_parameters()})
    return theirs.eval()


def _transformers_engines(theirs: Any, folder: Path) -> Iterator[tuple[str, Run]]:
    """Yield transformers' model in PyTorch, and its exported graph in ONNX Runtime in FP32 and INT8."""

    def run_torch(batch: Batch) -> FloatArray:
        with torch.inference_mode():
            ids, mask = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask)
            logits: FloatArray = theirs(input_ids=ids, attention_mask=mask).logits.numpy()
        return logits

    yield "transformers, PyTorch FP32", run_torch
    plain, int8 = folder / "transformers.onnx", folder / "transformers.int8.onnx"
    _export_transformers(theirs, plain)
    _quantize_dynamically(plain, int8)
    yield "transformers, ONNX Runtime FP32", open_in_onnxruntime(plain)
    yield "transformers, ONNX Runtime INT8", open_in_onnxruntime(int8)


def _export_transformers(theirs: Any, path: Path) -> None:
    """Write transformers' graph, as torch's exporter captures it, with dynamic axes."""
    theirs.config.return_dict = False
    batch, sequence = torch.export.Dim("batch", min=1), torch.export.Dim("sequence", min=2, max=512)
    arguments = {name: torch.ones((2, 5), dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        program = torch.onnx.export(
            theirs, (), kwargs=arguments, dynamo=True, opset_version=20, verbose=False, output_names=["logits"],
            dynamic_shapes={name: {0: batch, 1: sequence} for name in arguments},
        )  # fmt: skip
    theirs.config.return_dict = True
    assert program is not None
    program.save(str(path))


def _quantize_dynamically(plain: Path, int8: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(plain)
    del model.graph.value_info[:]  # its names of axes stop quantize_dynamic's shape inference
    onnx.save(model, plain)
    quantize_dynamic(plain, int8, per_channel=True, weight_type=QuantType.QInt8)


def _bert_export_engines(model: TaskModel, folder: Path) -> Iterator[tuple[str, Run]]:
    """Yield our graphs in FP32 and INT8, with native kernels where the processor has them."""
    graph = capture(model)
    counts = fuse(graph, model.config, model.task)
    batches = list(probe_batches(model, 128).values())
    int8 = graph.clone()
    quantize(int8, expected_projections(model.config, counts), measure_activations(graph, batches))
    for name, variant in (("FP32", graph), ("INT8", int8)):
        path = folder / f"ours.{name}.onnx"
        ir.save(lower_for_cpu(variant, counts).graph, path, external_data=f"{path.name}.data")
        session = Session(path, model.task.output, available_cores(), int8=name == "INT8")
        yield f"bert-export {name}", session.run


def _check_outputs(engines: dict[str, Run], vocab_size: int) -> dict[str, float]:
    """Return each engine's largest difference from transformers in PyTorch; raise if one in FP32 differs."""
    ids = np.random.default_rng(0).integers(5, vocab_size, (2, 40))
    batch = Batch(ids, np.ones_like(ids), np.zeros_like(ids))
    outputs = {name: run(batch) for name, run in engines.items()}
    reference = next(iter(outputs.values()))
    found = {name: float(np.abs(output - reference).max()) for name, output in outputs.items()}
    for name, difference in found.items():
        if "FP32" in name and difference > _MAX_DIFFERENCE:
            raise BenchError(f"{name} differs from transformers by {difference:.2g}")
    return found


def results_table(result: Path) -> str:
    """Return a result's latencies in ms as a Markdown table, then how many times as fast INT8 is."""
    shapes = json.loads(result.read_text(encoding="utf-8"))["shapes"]
    latencies = {name: [times[name]["p50_ms"] for times in shapes.values()] for name in next(iter(shapes.values()))}
    rows = [[name, *(f"{value:.1f}" for value in values)] for name, values in latencies.items()]
    for peer in _PEERS:
        ratios = [theirs / ours for theirs, ours in zip(latencies[peer], latencies[_OURS], strict=True)]
        rows.append([f"{_OURS} vs. {peer.partition(', ')[2]}", *(f"{ratio:.1f}×" for ratio in ratios)])
    return markdown_table(["median, ms", *(shape.replace("x", "×") for shape in shapes)], rows)


@click.command(help=__doc__)
@click.option("--size", type=click.Choice(list(FAMILIES["deberta-v2"].sizes)), default="base", show_default=True)
@path_option("--output", "Result file to write.")
@click.option("--rounds", type=int, default=15, show_default=True, help="Rounds of timing.")
def main(size: str, output: Path, rounds: int) -> None:
    """Time every engine at every shape and write the result."""
    torch.manual_seed(0)
    torch.set_num_threads(available_cores())
    model = TaskModel(FAMILIES["deberta-v2"].preset(size), TextClassification(labels=("a", "b"))).eval()
    with tempfile.TemporaryDirectory() as scratch:
        engines = dict(_transformers_engines(transformers_model(model), Path(scratch)))
        engines |= dict(_bert_export_engines(model, Path(scratch)))
        differences = _check_outputs(engines, model.config.vocab_size)
        shapes = {}
        for sequences, tokens in _SHAPES:
            shape, calls = f"{sequences}x{tokens}", max(1, round(_CALLS_TIMES_TOKENS / (sequences * tokens)))
            shapes[shape] = time_full_batch(engines, sequences, tokens, rounds, calls)
            click.echo(f"{shape}: {shapes[shape]}")
    write_result(
        output,
        {
            "what": "random weights; sessions of one process, threads stop spinning between calls",
            "model": f"deberta-v3-{size}",
            "max_abs_difference": differences,
            "shapes": shapes,
        },
    )


if __name__ == "__main__":
    main()
