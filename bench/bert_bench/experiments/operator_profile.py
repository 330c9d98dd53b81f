"""Where the time of an INT8 model goes, operator by operator: the bundle in ONNX Runtime beside OpenVINO with NNCF.

python -m bert_bench.experiments.operator_profile --checkpoint CKPT --bundle BUNDLE --cache DIR --output FILE

Both run on one thread with their own profilers on, in turns; of each, the turn that was disturbed least is kept. What a
call takes without the profiler is measured beside it. OpenVINO fuses activations and quantization into its products, so
theirs hold more.
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
from bert_bench.experiments.harness import write_result
from bert_bench.workers.artifact_cache import ArtifactCache
from bert_bench.workers.environments import Environment
from bert_bench.workloads import CORPUS
from bert_export.cli.common import table
from bert_runtime import Manifest
from bert_runtime.cpu.native_kernels import register_kernels
from bert_runtime.records import read_records
from bert_runtime.tokenization import as_text_input

__all__ = ["main", "onnxruntime_operators"]

_ROUNDS, _CALLS = 6, 6
_CALIBRATION_TEXTS = 200

_OPENVINO = """
import json, sys
from collections import Counter
from statistics import median
from time import perf_counter
import numpy as np, openvino
path, rows, tokens, calls = sys.argv[1], *map(int, sys.argv[2:])
graph = openvino.Core().read_model(path)
names = {name for value in graph.inputs for name in value.names}
ids = np.random.default_rng(0).integers(5, 100, (rows, tokens))
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


def onnxruntime_operators(graph: Path, rows: int, tokens: int, calls: int, *, kernels: bool) -> dict[str, Any]:
    """Milliseconds of a call, and of its operators by type, on one thread."""
    options = [onnxruntime.SessionOptions() for _ in range(2)]
    for each in options:
        each.intra_op_num_threads = 1
        each.log_severity_level = 3
        each.enable_mem_pattern = False
        each.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        if kernels:
            register_kernels(each)
    with tempfile.TemporaryDirectory() as folder:
        options[1].enable_profiling = True
        options[1].profile_file_prefix = str(Path(folder) / "profile")
        plain, profiled = (
            onnxruntime.InferenceSession(graph, each, providers=["CPUExecutionProvider"]) for each in options
        )
        ids = np.random.default_rng(0).integers(5, 100, (rows, tokens))
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        feed = {each.name: feed[each.name] for each in plain.get_inputs()}
        for session in (plain, profiled):
            for _ in range(3):
                session.run(None, feed)
        times = []
        for _ in range(calls):
            begin = perf_counter()
            plain.run(None, feed)
            times.append((perf_counter() - begin) * 1e3)
            profiled.run(None, feed)
        events = json.loads(Path(profiled.end_profiling()).read_text(encoding="utf-8"))
    microseconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in events:
        name = event.get("args", {}).get("op_name")
        if event["name"].endswith("_kernel_time") and name != "If":  # whose branches are listed themselves
            microseconds[name] += event["dur"]
            counts[name] += 1
    runs = calls + 3
    found = {
        name: {"count": round(counts[name] / runs), "ms": total / runs / 1e3}
        for name, total in microseconds.most_common()
    }
    return {"call_ms": median(times), "operators": found}


def _openvino_operators(environment: Environment, graph: Path, rows: int, tokens: int, calls: int) -> dict[str, Any]:
    """The same of OpenVINO, in its own environment."""
    arguments = [str(each) for each in (graph, rows, tokens, calls)]
    done = subprocess.run(
        [environment.python, "-c", _OPENVINO, *arguments], env={**os.environ, **environment.variables()},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _report(shape: str, engines: Mapping[str, Mapping[str, Any]]) -> str:
    rows: list[tuple[Any, ...]] = [(shape, "call, ms", "operators", "count", "ms")]
    for name, found in engines.items():
        first = (name, f"{found['call_ms']:.1f}")
        for operator, each in list(found["operators"].items())[:8]:
            rows.append((*first, operator, each["count"], f"{each['ms']:.2f}"))
            first = ("", "")
    return table(rows)


@click.command(help=__doc__)
@click.option("--checkpoint", type=click.Path(path_type=Path), required=True)
@click.option("--bundle", type=click.Path(path_type=Path), required=True, help="Exported from the checkpoint.")
@click.option("--cache", type=click.Path(path_type=Path), required=True, help="Where OpenVINO's environment is made.")
@click.option("--shape", "shapes", multiple=True, default=("1x128", "1x384"), show_default=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(checkpoint: Path, bundle: Path, cache: Path, shapes: tuple[str, ...], output: Path) -> None:
    """Prepares OpenVINO's graph, profiles both, prints and writes."""
    manifest = Manifest.read(bundle)
    facts = check_checkpoint(checkpoint, None)
    texts = [as_text_input(record.text()) for record in read_records(CORPUS)][:_CALIBRATION_TEXTS]
    artifact_cache = ArtifactCache(cache=cache, checkpoint_key=facts.key, texts=texts, progress=click.echo)
    config = next(config for config in CONFIGS if config.name == "openvino-int8")
    spec = OpenVINOSpec(bundle=bundle, threads=1, max_batch_tokens=None, config=config, checkpoint=checkpoint)
    files = artifact_cache.prepared(spec).files
    environment = Environment("openvino", cache)
    what = f"milliseconds on one thread, by operator, of INT8 models: the fastest of {_ROUNDS} turns"
    result: dict[str, Any] = {"what": what, "shapes": {}}
    for shape in shapes:
        rows, tokens = map(int, shape.split("x"))
        graph = bundle / manifest.variant("int8").model.file
        turns = [
            {
                "bundle": onnxruntime_operators(graph, rows, tokens, _CALLS, kernels=True),
                "bundle without kernels": onnxruntime_operators(graph, rows, tokens, _CALLS, kernels=False),
                "OpenVINO": _openvino_operators(environment, files / "model.xml", rows, tokens, _CALLS),
            }
            for _ in range(_ROUNDS)
        ]
        engines = {
            name: min((turn[name] for turn in turns), key=lambda each: float(each["call_ms"])) for name in turns[0]
        }
        result["shapes"][shape] = engines
        click.echo(_report(shape, engines))
    write_result(output, result)


if __name__ == "__main__":
    main()
