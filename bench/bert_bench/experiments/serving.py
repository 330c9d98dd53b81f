"""Measure `bert-export serve` under load, alone and next to other servers of the same model.

python -m bert_bench.experiments.serving BUNDLE --checkpoint CKPT --texts FILE COLUMN --output FILE

BUNDLE is the export of CKPT, a sentence-transformers checkpoint with mean pooling, in FP32 and INT8. Load comes from
locust on the same machine over the loopback interface. Peers run in environments of their own; they load ONNX exports
of CKPT, in FP32 and in INT8. All servers are started; a round lets one of them run at a time, and stops the others
(SIGSTOP). Every server returns embeddings as lists of numbers. Their cosine similarity with ours in FP32 is measured in
the same run. A peer that cannot be installed or started is recorded with its error.

Of our server are measured: what HTTP adds to a call, processor time per text, twice the capacity, start, memory, and
two processes instead of one.

Made bench/results/serving-*.json.
"""

import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from bert_bench.experiments.harness import distinct_texts, path_option, write_result
from bert_bench.serving.fleet import Fleet, ModelFolders, start_server
from bert_bench.serving.http_cost import measure_cpu, measure_latency
from bert_bench.serving.lifetime import measure_memory, measure_processes, measure_starts
from bert_bench.serving.overload import measure_overload
from bert_bench.serving.peer_throughput import measure_fleet
from bert_bench.serving.server_spec import PEERS, ServerSpec, our_server
from bert_bench.serving.tables import results_chart, results_table
from bert_bench.workers.environments import bench_cache_dir
from bert_runtime import Model, load
from bert_runtime.tasks import TextInput, stack_single_window

__all__ = ["PARTS", "main", "results_chart", "results_table"]

PARTS = ("peers", "latency", "cpu", "overload", "start", "memory", "processes")
"""Parts of the experiment."""

_REFERENCE_TEXTS = 64
_MAX_QUEUE_MS = 2_000.0


def _token_counts(model: Model, texts: Sequence[str]) -> dict[str, float]:
    counts = [len(encoding) for (encoding,) in model.tokenizer.encode([TextInput(text) for text in texts])]
    return {"mean": round(float(np.mean(counts)), 1), "min": min(counts), "max": max(counts)}


def _peers(names: Sequence[str]) -> list[ServerSpec]:
    """Return the peers whose names start with one of those given; all without any."""
    chosen = [spec for spec in PEERS if not names or spec.name.startswith(tuple(names))]
    if not chosen:
        raise click.ClickException(f"expected peers of {', '.join(spec.name for spec in PEERS)}; found {names}")
    return chosen


class _Experiment:
    """Settings of a run, with a method for each part."""

    def __init__(
        self, models: ModelFolders, texts: list[str], *, seconds: int, rounds: int, peers: Sequence[str]
    ) -> None:
        self.models = models
        self.texts = texts
        self.timing: dict[str, Any] = {"seconds": seconds, "rounds": rounds}
        self.specs = [our_server("int8"), our_server("fp32"), *_peers(peers)]
        self.cache = bench_cache_dir()

    def peers(self) -> dict[str, Any]:
        """Compare all servers."""
        reference = stack_single_window(
            load(self.models.bundle, precision="fp32").outputs(self.texts[:_REFERENCE_TEXTS])
        )
        self.models.write_exports(self.cache, click.echo)
        with Fleet(self.specs, self.models, self.cache, click.echo) as fleet:
            measured = measure_fleet(fleet, self.texts, reference, **self.timing, progress=click.echo)
            return {
                spec.name: {
                    "label": spec.label,
                    "precision": spec.precision,
                    **measured.get(spec.name, {"error": fleet.errors.get(spec.name)}),
                }
                for spec in self.specs
            }

    def own(self, parts: Sequence[str], overload_s: int, requests: int) -> dict[str, Any]:
        """Measure what concerns our server alone."""
        model, found = load(self.models.bundle, precision="int8"), dict[str, Any]()
        with start_server(our_server(), self.models, self.cache, click.echo) as server:
            if "latency" in parts:
                found["latency"] = measure_latency(server, model, self.texts, **self.timing)
                click.echo(f"latency: {found['latency']}")
            if "cpu" in parts:
                found["cpu"] = measure_cpu(server, model, self.texts, **self.timing, progress=click.echo)
        if "overload" in parts:
            spec = our_server("int8", "--max-queue-ms", str(_MAX_QUEUE_MS))
            with start_server(spec, self.models, self.cache, click.echo) as server:
                found["overload"] = measure_overload(
                    server, self.texts, seconds=overload_s, max_queue_ms=_MAX_QUEUE_MS, progress=click.echo
                )
        if "memory" in parts:
            with start_server(our_server(), self.models, self.cache, click.echo) as server:
                found["memory"] = measure_memory(server, self.texts, requests, progress=click.echo)
        return found

    def start(self, starts: int) -> dict[str, Any]:
        """Measure our server's start."""
        return measure_starts(self.models, self.cache, starts)

    def processes(self) -> dict[str, Any]:
        """Compare one process with two."""
        return measure_processes(self.models, self.texts, self.cache, **self.timing, progress=click.echo)


def _measure(
    experiment: _Experiment, parts: Sequence[str], overload_s: int, requests: int, starts: int
) -> dict[str, Any]:
    """Return the parts' results."""
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "start": lambda: {"start": experiment.start(starts)},
        "peers": lambda: {"servers": experiment.peers()},
        "processes": lambda: {"processes": experiment.processes()},
    }
    found = experiment.own(parts, overload_s, requests)
    for name, step in steps.items():
        if name in parts:
            found |= step()
    return found


@click.command(help=__doc__)
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@path_option("--checkpoint", "Checkpoint folder that the bundle was exported from.")
@click.option(
    "--texts", type=(click.Path(path_type=Path), str), required=True,
    help="File of texts, and the column of the text: its name, or its number from 0.",
)  # fmt: skip
@path_option("--output", "Result file to write.")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="Measure this only; repeatable.")
@click.option("--peer", "peers", multiple=True, help="Compare with peers whose names start so; repeatable.")
@click.option("--seconds", type=click.IntRange(2), default=5, show_default=True, help="Of each load in each round.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Interleaved rounds.")
@click.option("--overload-s", type=click.IntRange(2), default=60, show_default=True, help="Seconds of the overload.")
@click.option("--requests", type=click.IntRange(20), default=10_000, show_default=True, help="For the memory.")
@click.option("--starts", type=click.IntRange(1), default=10, show_default=True, help="Starts to time.")
@click.option("--num-texts", type=click.IntRange(64), default=960, show_default=True, help="Different texts to send.")
def main(
    bundle: Path, checkpoint: Path, texts: tuple[Path, str], output: Path, parts: tuple[str, ...],
    peers: tuple[str, ...], seconds: int, rounds: int, overload_s: int, requests: int, starts: int, num_texts: int,
) -> None:  # fmt: skip
    """Measure the parts one after another and write the result."""
    found = distinct_texts(*texts, num_texts, at_least=_REFERENCE_TEXTS)
    with tempfile.TemporaryDirectory(prefix="bert-bench-serving-") as scratch:
        models = ModelFolders(bundle=bundle.resolve(), checkpoint=checkpoint.resolve(), exports=Path(scratch))
        experiment = _Experiment(models, found, seconds=seconds, rounds=rounds, peers=peers)
        measured = _measure(experiment, parts or PARTS, overload_s, requests, starts)
    tokens = _token_counts(load(bundle), found)
    write_result(output, {"texts": f"{texts[0].parent.name}/{texts[0].name}", "tokens": tokens, **measured})
    click.echo(results_table(output))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers are ended, too
    main()
