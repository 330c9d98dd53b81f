"""Measure bulk work on Ray: throughput of one and two replicas, and the CPU time of the driver and of Ray itself.

python -m bert_bench.experiments.ray_batch BUNDLE --texts FILE --output FILE [--rows N] [--part-rows N] [--rounds N]

Starts a Ray cluster on this machine: a head without cores, and two nodes of one core, each pinned to another core.
Every round answers the same Parquet file of N rows with one replica, with two, with the local engine on one thread and,
for embeddings, with `Model.encode` on one thread without files; each round starts with another one. All were warmed up.
CPU times are those that the system counts for the processes: replicas are Ray's workers, the driver is the process that
`bert-export batch` would be, and `ray` is the rest of the cluster (raylets, the control service, agents).

Made bench/results/ray-batch.json.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import click
import psutil

from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_bench.timing_statistics import rotated
from bert_runtime import SentenceEmbedding, read_records

__all__ = ["main", "results_table"]

_NODE: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1"}

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to Ray's makers
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all addresses are on the loopback interface
    "RAY_worker_niceness": "0",  # otherwise 15: what else runs on the machine would be measured
}

Sample = dict[str, float]
"""Seconds of one run: `wall_s`, and CPU seconds by kind of process."""


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    """Yield the address of a cluster of two pinned nodes."""
    os.environ.update(_ENVIRONMENT, RAY_TMPDIR=str(folder))
    (folder / "ray").mkdir(parents=True)
    from ray.cluster_utils import Cluster

    cores = sorted(os.sched_getaffinity(0))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **_NODE})
    try:
        for core in cores[:2]:
            os.sched_setaffinity(0, {core})  # which the node's processes inherit
            cluster.add_node(num_cpus=1, **_NODE)
            os.sched_setaffinity(0, cores)
        yield cluster.address
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def _cpu_seconds() -> dict[str, float]:
    """Return the CPU time of this process and those it has started, by kind."""
    this = psutil.Process()
    found = {"driver_cpu_s": sum(this.cpu_times()[:2]), "replicas_cpu_s": 0.0, "ray_cpu_s": 0.0}
    for process in this.children(recursive=True):
        try:
            is_replica = process.cmdline()[:1] and process.cmdline()[0].startswith("ray::")
            found["replicas_cpu_s" if is_replica else "ray_cpu_s"] += sum(process.cpu_times()[:2])
        except psutil.Error:  # it ended
            continue
    return found


def _measured(run: Callable[[], object]) -> Sample:
    before, start = _cpu_seconds(), time.perf_counter()
    run()
    wall_s = time.perf_counter() - start
    after = _cpu_seconds()
    return {"wall_s": round(wall_s, 3), **{name: round(after[name] - before[name], 3) for name in after}}


def _measure(bundle: Path, lines: list[str], part_rows: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Run all configurations in turns; return their samples, and the bytes per row that are read and written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from bert_serve import batch_function
    from bert_serve.bulk.local_engine import local_engine
    from bert_serve.bulk.ray_engine import RayEngine
    from bert_serve.bulk.run import Engine, prepare_run

    texts = folder / "texts.parquet"
    pq.write_table(pa.table({"id": range(len(lines)), "text": lines}), texts)
    answers = folder / "answers"
    function = batch_function(bundle, threads=1, keep=["id"])

    def run_batch(engine: Engine) -> None:
        with prepare_run([str(texts)], answers, function, part_rows=part_rows, force=True) as run:
            run.execute(engine)

    with _cluster(folder / "r") as address:
        import ray

        ray.init(address=address, log_to_driver=False, configure_logging=False)
        try:
            runs: dict[str, Callable[[], object]] = {
                "one replica": lambda: run_batch(RayEngine(replicas=1)),
                "two replicas": lambda: run_batch(RayEngine(replicas=2)),
                "local engine": lambda: run_batch(local_engine),
            }
            if isinstance(function.task, SentenceEmbedding):
                runs["encode"] = lambda: function.model().encode(lines)
            samples: dict[str, list[Sample]] = {name: [] for name in runs}
            for name in ("two replicas", "two replicas", "local engine"):
                runs[name]()
            for turn in range(rounds):
                for name in rotated(list(runs), turn):
                    samples[name].append(_measured(runs[name]))
                    click.echo(f"round {turn + 1}, {name}: {samples[name][-1]}", err=True)
        finally:
            ray.shutdown()
    written = sum(path.stat().st_size for path in answers.glob("*.parquet"))
    return {
        "rows": len(lines),
        "part_rows": part_rows,
        "parts": -(-len(lines) // part_rows),
        "bytes_read_per_row": round(texts.stat().st_size / len(lines), 1),
        "bytes_written_per_row": round(written / len(lines), 1),
        "samples": samples,
    }


def _summary(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures that the text and the table show."""
    samples, rows = values["samples"], values["rows"]

    def middle(name: str, key: str) -> float:
        return median(sample[key] for sample in samples[name])

    # Rates are those of the fastest run: what else runs on the machine only ever slows one.
    one, two = (rows / min(sample["wall_s"] for sample in samples[name]) for name in ("one replica", "two replicas"))
    replicas_cpu_s = middle("two replicas", "replicas_cpu_s")
    driver_cpu_s = middle("two replicas", "driver_cpu_s")
    return {
        "rows_per_s": one,
        "rows_per_s_of_two": two,
        "speedup": two / one,
        "rows_per_cpu_s": rows / replicas_cpu_s,
        "driver_share": driver_cpu_s / replicas_cpu_s,
        "ray_share": middle("two replicas", "ray_cpu_s") / replicas_cpu_s,
        "driver_ms_per_part": driver_cpu_s / values["parts"] * 1e3,
        "replica_vs_local": replicas_cpu_s / middle("local engine", "driver_cpu_s"),
        "local_vs_encode": middle("local engine", "driver_cpu_s") / middle("encode", "driver_cpu_s")
        if "encode" in samples
        else float("nan"),
    }


def results_table(result: Path) -> str:
    """Return the figures in a result file, and what follows from them for many replicas, as Markdown."""
    values = json.loads(result.read_text("utf-8"))
    found = _summary(values)
    rows = [
        ["rows per second of one replica, *r*", f"{found['rows_per_s']:,.0f}"],
        ["of two replicas", f"{found['rows_per_s_of_two']:,.0f}, {found['speedup']:.2f}×"],
        ["CPU time of the driver, of that of the replicas", f"{found['driver_share']:.1%}"],
        ["CPU time of Ray's other processes, likewise", f"{found['ray_share']:.1%}"],
        ["CPU time of the driver per part, *d*", f"{found['driver_ms_per_part']:.1f} ms"],
        ["CPU time of a replica, of that of the local engine", f"{found['replica_vs_local']:.2f}×"],
        ["CPU time of the local engine, of that of `Model.encode`", f"{found['local_vs_encode']:.2f}×"],
        ["bytes per row, read and written, *b*", f"{_bytes_per_row(values):,.0f}"],
    ]
    return f"{markdown_table(['', 'measured'], rows)}\n\n{_limits(values, found)}"


def _bytes_per_row(values: Mapping[str, Any]) -> float:
    return float(values["bytes_read_per_row"]) + float(values["bytes_written_per_row"])


def _limits(values: Mapping[str, Any], found: Mapping[str, float]) -> str:
    """Return for how many replicas the driver and a storage suffice, by the measured figures."""
    rate, default_rows = found["rows_per_s"], 50_000
    part_s = default_rows / rate
    driver = part_s / (found["driver_ms_per_part"] / 1e3)
    storage = 1e9 / (rate * _bytes_per_row(values))
    return (
        f"With parts of *R* = {default_rows:,} rows, a part takes *R* / *r* = {part_s:.0f} s, so that the driver's "
        f"one core is full at *R* / (*r* · *d*) = {driver:,.0f} replicas. A storage of *B* = 1 GB per second is full "
        f"at *B* / (*r* · *b*) = {storage:,.0f} replicas. The last parts leave replicas idle for up to *R* / *r*: with "
        "*P* parts on *n* replicas, at least *P* / (*P* + *n*) of the time is used."
    )


@click.command(help=__doc__)
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@path_option("--texts", "File of texts, repeated as often as needed.")
@path_option("--output", "Result file to write.")
@click.option("--rows", type=click.IntRange(min=2), default=30_000, show_default=True, help="Rows to answer.")
@click.option("--part-rows", type=click.IntRange(min=1), default=2_500, show_default=True, help="Rows of a part.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each kind.")
def main(bundle: Path, texts: Path, output: Path, rows: int, part_rows: int, rounds: int) -> None:
    """Measure, and write the result."""
    lines = list(islice(cycle([record.text() for record in read_records(texts)]), rows))
    with tempfile.TemporaryDirectory(
        prefix="ray-", dir="/tmp"
    ) as folder:  # short: the path of a socket is at most 107 bytes
        values = _measure(bundle, lines, part_rows, rounds, Path(folder))
    write_result(output, {"what": "bulk embeddings on Ray", **values, "summary": _summary(values)}, threads=1)
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
