"""Measure ModernBERT with random weights: latency beside BERT and peers, and memory at 8,192 tokens.

python -m bert_bench.experiments.modernbert --work FOLDER --output FILE [--size SIZE] [--tokens N]

Weights are random, since no package carries a real checkpoint; latency and memory do not depend on them. Engines take
turns on one text of N tokens: this project's FP32 and INT8 graphs of ModernBERT and of BERT, transformers in PyTorch in
FP32 and bfloat16, and ONNX Runtime and OpenVINO on torch's export of transformers' model: in FP32, and quantized by
quantize_dynamic per channel or by NNCF. A peer that fails, or is not installed, is reported with the reason. Memory is
the peak resident set size of a new process that opens a graph and runs one text of 8,192 tokens.

Made bench/results/modernbert-base.json.
"""

import json
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import onnx_ir as ir
import torch

from bert_bench.experiments.harness import path_option, time_full_batch, write_result
from bert_bench.experiments.modernbert_peers import Engine, open_peers
from bert_bench.reports.markdown_table import markdown_table
from bert_export.capture import capture
from bert_export.fusion import fuse
from bert_export.outline_kernels import lower_for_cpu
from bert_export.parity import probe_batches
from bert_export.quantization import expected_projections, measure_activations, quantize
from bert_models import FAMILIES, EncoderConfig, TaskModel
from bert_runtime.cpu.session import Session
from bert_runtime.machine import available_cores
from bert_runtime.tasks import SentenceEmbedding
from bert_runtime.tokenization import Batch

__all__ = ["main", "results_table"]

_OURS = "ModernBERT, INT8"
"""The engine that the table compares others with."""

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
    _save(lower_for_cpu(graph, fusions).graph, paths["fp32"])
    batches = [*probe_batches(model, _CALIBRATION_TOKENS).values()]
    quantize(graph, expected_projections(config, fusions), measure_activations(graph, batches, headroom=1.3))
    _save(lower_for_cpu(graph, fusions).graph, paths["int8"])
    return paths


def _save(graph: ir.Model, path: Path) -> None:
    ir.save(graph, path, external_data=f"{path.name}.data")


def _peak_mib(path: Path, precision: str, *, kernels: bool = True) -> int:
    """Return the peak resident MiB of a process that opens a graph and runs one text."""
    arguments = [str(path), str(available_cores()), str(int(precision == "int8")), str(int(kernels)), str(_LONG)]
    result = subprocess.run([sys.executable, "-c", _RUN_ONCE, *arguments], capture_output=True, text=True, check=True)
    return round(int(result.stdout) / 1024)


def results_table(result: Path) -> str:
    """Return a result file's latencies and peak memory as Markdown tables, and why peers failed."""
    found = json.loads(result.read_text("utf-8"))
    latency = {name: values["p50_ms"] for name, values in found["latency"].items()}
    ours = latency[_OURS]
    rows = [(name, f"{value:.1f}", f"{value / ours:.2f}×") for name, value in latency.items()]
    memory = [(name, f"{value:,}") for name, value in found["peak_mib"].items()]
    failed = [f"* {name}: `{reason}`" for name, reason in found["failed"].items()]
    blocks = [
        markdown_table((f"one text of {found['tokens']} tokens", "median, ms", f"of {_OURS}"), rows),
        markdown_table((f"one text of {found['memory_tokens']:,} tokens", "peak resident memory, MiB"), memory),
    ]
    return "\n\n".join([*blocks, *(["Did not run:\n\n" + "\n".join(failed)] if failed else [])])


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
    peers, failed = open_peers(FAMILIES["modernbert"].preset(size), work, Batch(ones, ones, ones * 0))
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
