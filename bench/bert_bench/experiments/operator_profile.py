"""Profile INT8 inference by operator: a bundle in ONNX Runtime, with and without native kernels, vs. OpenVINO (NNCF).

python -m bert_bench.experiments.operator_profile --checkpoint CKPT --bundle BUNDLE --cache DIR --output FILE

Each engine runs on one thread with its own profiler, in 6 turns of 6 calls, interleaved with the other engines; the
turn with the fastest call is reported. The latency of a call is measured without the profiler, in a second session.
OpenVINO fuses activations and quantization into its matmuls, so its matmuls contain more work.

Made bench/results/operators-base.json, with BERT-base.
"""

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import numpy as np
import onnxruntime

from bert_bench.checkpoints import check_checkpoint
from bert_bench.engines.openvino import CONFIGS, OpenVINOSpec
from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import MISSING, markdown_table
from bert_bench.workers.artifact_cache import ArtifactCache
from bert_bench.workers.environments import Environment
from bert_bench.workloads import CORPUS
from bert_export.cli.terminal import format_table
from bert_runtime import Manifest
from bert_runtime.cpu.native_kernels import register_kernels
from bert_runtime.inputs import as_text_input
from bert_runtime.records import read_records

__all__ = ["main", "onnxruntime_operators", "results_table"]

_TURNS, _CALLS, _WARM_UP_CALLS = 6, 6, 3
_CALIBRATION_TEXTS = 200
_SHOWN_OPERATORS = 8

_PROFILE_OPENVINO = """
import json, sys
from collections import Counter
from statistics import median
from time import perf_counter
import numpy as np, openvino
path, sequences, tokens, calls = sys.argv[1], *map(int, sys.argv[2:])
graph = openvino.Core().read_model(path)
names = {name for value in graph.inputs for name in value.names}
ids = np.random.default_rng(0).integers(5, 100, (sequences, tokens))
feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
feed = {name: array for name, array in feed.items() if name in names}
options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
plain = openvino.compile_model(graph, "CPU", options).create_infer_request()
profiled = openvino.compile_model(graph, "CPU", {**options, "PERF_COUNT": "YES"}).create_infer_request()
for request in (plain, profiled):
    for _ in range(3):
        request.infer(feed, share_inputs=True)
times, milliseconds, counts = [], Counter(), Counter()
for _ in range(calls):
    begin = perf_counter()
    plain.infer(feed, share_inputs=True)
    times.append((perf_counter() - begin) * 1e3)
    profiled.infer(feed, share_inputs=True)
    for node in profiled.profiling_info:
        if took := node.real_time.total_seconds() * 1e3:
            name = f"{node.node_type} ({node.exec_type})"
            milliseconds[name] += took
            counts[name] += 1
found = {name: {"count": round(counts[name] / calls), "ms": ms / calls} for name, ms in milliseconds.most_common()}
print(json.dumps({"call_ms": median(times), "operators": found}))
"""
"""Program for OpenVINO's environment. Arguments: graph, sequences, tokens, calls."""


def onnxruntime_operators(graph: Path, sequences: int, tokens: int, calls: int, *, kernels: bool) -> dict[str, Any]:
    """Profile a graph in ONNX Runtime on one thread, on a batch without padding.

    Args:
        graph: ONNX file.
        sequences: batch size.
        tokens: length of every sequence.
        calls: timed calls, each without and with the profiler.
        kernels: whether to use the native kernels.

    Returns:
        `call_ms`, the median latency without the profiler, and per operator type, slowest first, the `count` of nodes
        and the `ms` per call.

    """
    with tempfile.TemporaryDirectory() as folder:
        plain = _open_session(graph, kernels=kernels)
        profiled = _open_session(graph, kernels=kernels, profile_prefix=str(Path(folder) / "profile"))
        ids = np.random.default_rng(0).integers(5, 100, (sequences, tokens))
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        feed = {node.name: inputs[node.name] for node in plain.get_inputs()}
        for session in (plain, profiled):
            for _ in range(_WARM_UP_CALLS):
                session.run(None, feed)
        times = []
        for _ in range(calls):
            begin = perf_counter()
            plain.run(None, feed)
            times.append((perf_counter() - begin) * 1e3)
            profiled.run(None, feed)
        events = json.loads(Path(profiled.end_profiling()).read_text(encoding="utf-8"))
    return {"call_ms": median(times), "operators": _operator_times(events, calls + _WARM_UP_CALLS)}


def _open_session(graph: Path, *, kernels: bool, profile_prefix: str | None = None) -> onnxruntime.InferenceSession:
    """Open a graph on one thread; with `profile_prefix`, with the profiler writing to that file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_mem_pattern = False
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    if kernels:
        register_kernels(options)
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _operator_times(events: list[dict[str, Any]], calls: int) -> dict[str, dict[str, float]]:
    """Sum ONNX Runtime's profiling events by operator type, slowest first: `count` and `ms` per call."""
    microseconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in events:
        name = event.get("args", {}).get("op_name")
        if event["name"].endswith("_kernel_time") and name != "If":  # the nodes of its branches have their own events
            microseconds[name] += event["dur"]
            counts[name] += 1
    return {
        name: {"count": round(counts[name] / calls), "ms": total / calls / 1e3}
        for name, total in microseconds.most_common()
    }


def _openvino_operators(
    environment: Environment, graph: Path, sequences: int, tokens: int, calls: int
) -> dict[str, Any]:
    """Profile a graph in OpenVINO as `onnxruntime_operators` does, in OpenVINO's own environment."""
    arguments = [str(argument) for argument in (graph, sequences, tokens, calls)]
    done = subprocess.run(
        [environment.python, "-c", _PROFILE_OPENVINO, *arguments], env={**os.environ, **environment.variables()},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    profile: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return profile


def _report(shape: str, engines: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the slowest operators of each engine as a text table."""
    rows: list[tuple[Any, ...]] = [(shape, "call, ms", "operators", "count", "ms")]
    for name, profile in engines.items():
        first_columns = (name, f"{profile['call_ms']:.1f}")
        for operator, totals in list(profile["operators"].items())[:_SHOWN_OPERATORS]:
            rows.append((*first_columns, operator, totals["count"], f"{totals['ms']:.2f}"))
            first_columns = ("", "")
    return format_table(rows)


def _prepare_openvino(checkpoint: Path, bundle: Path, cache: Path) -> Path:
    """Quantize the checkpoint with NNCF in OpenVINO's environment, unless it is cached; return the graph."""
    facts = check_checkpoint(checkpoint, None)
    texts = [as_text_input(record.text()) for record in read_records(CORPUS)][:_CALIBRATION_TEXTS]
    artifact_cache = ArtifactCache(cache=cache, checkpoint_key=facts.key, texts=texts, progress=click.echo)
    config = next(config for config in CONFIGS if config.name == "openvino-int8")
    spec = OpenVINOSpec(bundle=bundle, threads=1, max_batch_tokens=None, config=config, checkpoint=checkpoint)
    return artifact_cache.prepared(spec).files / "model.xml"


def results_table(result: Path) -> str:
    """Return the slowest operators of each engine in a result file as Markdown tables, in milliseconds by shape."""
    shapes = json.loads(result.read_text("utf-8"))["shapes"]
    tables = []
    for engine in dict.fromkeys(name for engines in shapes.values() for name in engines):
        profiles = [engines[engine] for engines in shapes.values()]
        names = list(profiles[0]["operators"])[:_SHOWN_OPERATORS]
        rows = [["whole call", *(f"{profile['call_ms']:.1f}" for profile in profiles)]]
        rows += [[f"`{name}`", *(_milliseconds(profile, name) for profile in profiles)] for name in names]
        tables.append(markdown_table([engine, *(f"{shape.replace('x', '×')}, ms" for shape in shapes)], rows))
    return "\n\n".join(tables)


def _milliseconds(profile: Mapping[str, Any], operator: str) -> str:
    totals = profile["operators"].get(operator)
    return MISSING if totals is None else f"{totals['ms']:.2f}"


@click.command(help=__doc__)
@path_option("--checkpoint", "Checkpoint folder.")
@path_option("--bundle", "Bundle exported from the checkpoint, with an INT8 variant.")
@path_option("--cache", "Folder for OpenVINO's environment and graph.")
@click.option(
    "--shape", "shapes", multiple=True, default=("1x128", "1x384"), show_default=True,
    help="Batch to profile: SEQUENCESxTOKENS.",
)  # fmt: skip
@path_option("--output", "Result file to write.")
def main(checkpoint: Path, bundle: Path, cache: Path, shapes: tuple[str, ...], output: Path) -> None:
    """Profile the engines at every shape, print the slowest operators and write the result."""
    graph = bundle / Manifest.read(bundle).variant("int8").model.file
    openvino_graph = _prepare_openvino(checkpoint, bundle, cache)
    environment = Environment("openvino", cache)
    what = f"milliseconds on one thread, by operator, of INT8 models: the fastest of {_TURNS} turns"
    result: dict[str, Any] = {"what": what, "shapes": {}}
    for shape in shapes:
        sequences, tokens = map(int, shape.split("x"))
        turns = [
            {
                "bundle": onnxruntime_operators(graph, sequences, tokens, _CALLS, kernels=True),
                "bundle without kernels": onnxruntime_operators(graph, sequences, tokens, _CALLS, kernels=False),
                "OpenVINO": _openvino_operators(environment, openvino_graph, sequences, tokens, _CALLS),
            }
            for _ in range(_TURNS)
        ]
        engines = {
            name: min((turn[name] for turn in turns), key=lambda profile: float(profile["call_ms"]))
            for name in turns[0]
        }
        result["shapes"][shape] = engines
        click.echo(_report(shape, engines))
    write_result(output, result)


if __name__ == "__main__":
    main()
