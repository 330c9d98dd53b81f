"""Measure ModernBERT with random weights: latency beside BERT and peers, and memory at 8,192 tokens.

python -m bert_bench.experiments.modernbert --work FOLDER --output FILE [--size SIZE] [--tokens N]

Weights are random, since no package carries a real checkpoint; latency and memory do not depend on them. Engines take
turns on one text of N tokens: this project's FP32 and INT8 graphs of ModernBERT and of BERT, transformers in PyTorch in
FP32 and bfloat16, and ONNX Runtime on torch's export of transformers' model, in FP32 and with its own dynamic INT8. A
peer that fails is reported with the reason. Memory is the peak resident set size of a new process that opens a graph
and runs one text of 8,192 tokens.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx_ir as ir
import torch

from bert_bench.experiments.harness import path_option, time_full_batch, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_export.capture import capture
from bert_export.fusion import add_padding_branch, fuse
from bert_export.outline_kernels import outline_kernels
from bert_export.parity import probe_batches
from bert_export.quantization import expected_projections, measure_activations, quantize
from bert_models import FAMILIES, EncoderConfig, TaskModel
from bert_runtime.cpu.session import Session
from bert_runtime.machine import available_cores
from bert_runtime.tasks import SentenceEmbedding
from bert_runtime.tokenization import Batch

__all__ = ["main", "results_table"]

Engine = Callable[[Batch], object]

_CALIBRATION_TOKENS = 64
_LONG = 8192
"""Tokens of the text whose memory is measured: as many as ModernBERT reads."""

_RUN_ONCE = """
import sys
from pathlib import Path
import numpy as np
from bert_runtime.cpu.session import Session
from bert_runtime.tokenization import Batch
path, cores, int8, kernels, tokens = sys.argv[1], *map(int, sys.argv[2:])
session = Session(path, "embedding", cores, int8=bool(int8), kernels=bool(kernels))
ones = np.ones((1, tokens), dtype=np.int64)
session.run(Batch(ones * 2000, ones, ones * 0))
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""
"""Program of the process whose memory is measured. Arguments: graph, cores, whether it is INT8, whether kernels run,
tokens. Its peak is read from /proc, since that of getrusage starts at its parent's."""


def _build(config: EncoderConfig, folder: Path) -> dict[str, Path]:
    """Write the FP32 and INT8 graphs of a model with random weights, unless they are there; return their paths."""
    paths = {precision: folder / f"{config.family}.{precision}.onnx" for precision in ("fp32", "int8")}
    if all(path.is_file() for path in paths.values()):
        return paths
    torch.manual_seed(0)
    model = TaskModel(config, SentenceEmbedding(dimensions=config.hidden_size)).eval()
    graph = capture(model)
    fusions = fuse(graph, config, model.task)
    _save(add_padding_branch(graph, fusions)[0], paths["fp32"])
    batches = [*probe_batches(model, _CALIBRATION_TOKENS).values()]
    quantize(graph, expected_projections(config, fusions), measure_activations(graph, batches, headroom=1.3))
    _save(add_padding_branch(graph, fusions)[0], paths["int8"])
    return paths


def _save(graph: ir.Model, path: Path) -> None:
    ir.save(outline_kernels(graph)[0], path, external_data=f"{path.name}.data")


def _transformers_model(config: EncoderConfig) -> torch.nn.Module:
    from transformers import ModernBertConfig, ModernBertModel

    torch.manual_seed(0)
    model: torch.nn.Module = ModernBertModel(ModernBertConfig(**FAMILIES["modernbert"].dump_config(config)))
    return model.eval()


def _export_transformers(config: EncoderConfig, path: Path) -> Path:
    """Export transformers' model with torch, unless that was done."""
    if not path.is_file():
        axes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("sequence", min=2, max=_LONG)}
        inputs = {name: torch.ones((2, 300), dtype=torch.int64) for name in ("input_ids", "attention_mask")}
        torch.onnx.export(
            _transformers_model(config), (), path, kwargs=inputs, dynamo=True, opset_version=20, verbose=False,
            dynamic_shapes=dict.fromkeys(inputs, axes), input_names=list(inputs), output_names=["hidden"],
        )  # fmt: skip
    return path


def _open_torch(config: EncoderConfig, folder: Path, *, half: bool) -> Engine:
    torch.set_num_threads(available_cores())
    model = _transformers_model(config)
    return partial(_run_torch, model.bfloat16() if half else model)


def _open_onnx(config: EncoderConfig, folder: Path, *, dynamic: bool) -> Engine:
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic

    path = _export_transformers(config, folder / "transformers.fp32.onnx")
    if dynamic:
        exported, path = path, folder / "transformers.dynamic.onnx"
        if not path.is_file():
            quantize_dynamic(exported, path, use_external_data_format=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = available_cores()
    return partial(_run_onnx, onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]))


_PEERS: dict[str, Callable[[EncoderConfig, Path], Engine]] = {
    "transformers, FP32": partial(_open_torch, half=False),
    "transformers, bfloat16": partial(_open_torch, half=True),
    "ONNX Runtime, FP32": partial(_open_onnx, dynamic=False),
    "ONNX Runtime, dynamic INT8": partial(_open_onnx, dynamic=True),
}


def _open_peers(config: EncoderConfig, folder: Path, probe: Batch) -> tuple[dict[str, Engine], dict[str, str]]:
    """Open every peer and run it once; return those that run, and why the others do not."""
    engines, failed = {}, {}
    for name, open_peer in _PEERS.items():
        try:
            engine = open_peer(config, folder)
            engine(probe)
            engines[name] = engine
        except Exception as error:  # a peer's exporter and runtime share no error but this
            failed[name] = f"{type(error).__name__}: {error}"[:300]
    return engines, failed


def _run_torch(module: torch.nn.Module, batch: Batch) -> object:
    with torch.inference_mode():
        return module(torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask)).last_hidden_state


def _run_onnx(session: Any, batch: Batch) -> object:
    names = {value.name for value in session.get_inputs()}
    return session.run(None, {name: array for name, array in batch._asdict().items() if name in names})


def _peak_mib(path: Path, precision: str, *, kernels: bool = True, tokens: int = _LONG) -> int:
    """Return the peak resident MiB of a process that opens a graph and runs one text."""
    arguments = [str(path), str(available_cores()), str(int(precision == "int8")), str(int(kernels)), str(tokens)]
    result = subprocess.run([sys.executable, "-c", _RUN_ONCE, *arguments], capture_output=True, text=True, check=True)
    return round(int(result.stdout) / 1024)


def results_table(result: Path) -> str:
    """Return a result file's latencies as a Markdown table."""
    found = json.loads(result.read_text("utf-8"))
    rows = [(name, f"{values['p50_ms']:.1f}", f"{values['speedup']:.2f}") for name, values in found["latency"].items()]
    return markdown_table(("engine", "ms", "speed, INT8 = 1"), rows)


@click.command(help=__doc__)
@path_option("--work", "Folder for graphs, which a second run uses again.")
@click.option("--size", default="base", show_default=True, help="Size of ModernBERT and of BERT.")
@click.option("--tokens", type=int, default=512, show_default=True, help="Tokens of the text that is timed.")
@click.option("--rounds", type=int, default=5, show_default=True)
@click.option("--calls", type=int, default=5, show_default=True)
@path_option("--output", "Result file to write.")
def main(work: Path, size: str, tokens: int, rounds: int, calls: int, output: Path) -> None:
    """Build the graphs, time them, measure memory, write the result."""
    work.mkdir(parents=True, exist_ok=True)
    engines: dict[str, Engine] = {}
    graphs = {}
    for family, title in (("modernbert", "ModernBERT"), ("bert", "BERT")):
        graphs[family] = _build(FAMILIES[family].preset(size), work)
        for precision in ("int8", "fp32"):
            path, int8 = graphs[family][precision], precision == "int8"
            session = Session(path, "embedding", available_cores(), int8=int8, kernels=True)
            engines[f"{title}, {precision.upper()}"] = session.run
    ones = np.ones((1, tokens), dtype=np.int64)
    peers, failed = _open_peers(FAMILIES["modernbert"].preset(size), work, Batch(ones, ones, ones * 0))
    latency = time_full_batch(engines | peers, 1, tokens, rounds, calls)
    memory = {
        f"{precision.upper()}{'' if kernels else ', no native kernels'}": _peak_mib(path, precision, kernels=kernels)
        for precision, path in graphs["modernbert"].items()
        for kernels in (True, False)
    }
    measured = {"latency": latency, "failed": failed, "memory_tokens": _LONG, "peak_mib": memory}
    write_result(output, {"size": size, "tokens": tokens, **measured})
    click.echo(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
