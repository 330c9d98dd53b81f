"""Run an MLPerf LoadGen scenario on an engine: LoadGen issues the queries and takes the times.

These are measurements with LoadGen, not MLPerf results: the model, the data and the durations are not MLPerf's.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bert_bench.errors import BenchError
from bert_runtime.tasks import TextInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bert_bench.engines import Engine

__all__ = ["SCENARIOS", "LoadOptions", "read_summary", "run_scenario", "summary_metrics"]

SCENARIOS = ("SingleStream", "Offline", "Server")

_OFFLINE_RATE_MARGIN = 1.2
"""Expected Offline rate over the measured one, so that the single query lasts long enough."""


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Duration and load of LoadGen's scenarios."""

    duration_s: float
    """Minimum duration of a scenario."""
    texts_per_s: float
    """Mean arrival rate of the Server scenario."""
    latency_ms: float
    """Latency that 99 % of the Server scenario's queries must meet for LoadGen to call the run valid."""


def run_scenario(
    engine: "Engine", modules: Path, scenario: str, texts: Sequence[TextInput], options: LoadOptions
) -> dict[str, Any]:
    """Run one scenario and return LoadGen's summary.

    Args:
        engine: the engine that serves the queries.
        modules: the site-packages folder that holds LoadGen's Python module.
        scenario: one of `SCENARIOS`.
        texts: LoadGen's query samples.
        options: duration and load.

    Returns:
        The values of LoadGen's summary by name, see `read_summary`.

    Raises:
        BenchError: LoadGen wrote no summary.
    """
    loadgen = _import_loadgen(modules)
    settings = _test_settings(loadgen, engine, scenario, texts, options)
    with TemporaryDirectory() as folder, _query_handler(engine, loadgen, scenario, texts) as issue:
        output = loadgen.LogOutputSettings()
        output.outdir, output.copy_summary_to_stdout = folder, False
        logs = loadgen.LogSettings()
        logs.log_output = output
        logs.enable_trace = False
        library = loadgen.ConstructQSL(len(texts), len(texts), lambda samples: None, lambda samples: None)
        system = loadgen.ConstructSUT(issue, lambda: None)
        try:
            loadgen.StartTestWithLogSettings(system, library, settings, logs)
        finally:
            loadgen.DestroySUT(system)
            loadgen.DestroyQSL(library)
        summary = Path(folder) / "mlperf_log_summary.txt"
        if not summary.is_file():
            raise BenchError("LoadGen wrote no summary")
        return read_summary(summary.read_text(encoding="utf-8"))


def _test_settings(
    loadgen: ModuleType, engine: "Engine", scenario: str, texts: Sequence[TextInput], options: LoadOptions
) -> Any:
    """Return LoadGen's settings for a scenario; for Offline, measure the engine's throughput first."""
    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, scenario)
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = int(options.duration_s * 1e3)
    settings.min_query_count = 1 if scenario == "Offline" else 64
    if scenario == "Offline":
        engine.choose_batches(texts)
        settings.offline_expected_qps = _OFFLINE_RATE_MARGIN * _throughput(engine, texts)
    settings.server_target_qps = options.texts_per_s
    settings.server_target_latency_ns = int(options.latency_ms * 1e6)
    return settings


def _throughput(engine: "Engine", texts: Sequence[TextInput]) -> float:
    """Return the texts per second of one call with all texts."""
    begin = perf_counter()
    engine.predict_batch(texts)
    return len(texts) / (perf_counter() - begin)


def _import_loadgen(modules: Path) -> ModuleType:
    """Import LoadGen from a folder that is last on the module path, so that it shadows nothing."""
    if str(modules) not in sys.path:
        sys.path.append(str(modules))
    import mlperf_loadgen

    module: ModuleType = mlperf_loadgen
    return module


@contextmanager
def _query_handler(engine: "Engine", loadgen: ModuleType, scenario: str, texts: Sequence[TextInput]) -> "Iterator[Any]":
    """Yield the function that LoadGen issues queries to; raise the engine's first error when the block ends.

    Queries of the Server scenario arrive on a schedule, so another thread serves them in their order.
    """
    errors: list[BaseException] = []

    def complete(samples: Sequence[Any]) -> None:
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample.id, 0, 0) for sample in samples])

    def respond(samples: Sequence[Any]) -> None:
        try:
            if not errors:
                queried = [texts[sample.index] for sample in samples]
                if scenario == "Offline":
                    engine.predict_batch(queried)
                else:
                    engine.predict(queried[0])
        except BaseException as error:  # LoadGen waits for every response; the error is raised after its run
            errors.append(error)
        complete(samples)

    queue: SimpleQueue[list[Any] | None] = SimpleQueue()

    def serve() -> None:
        for samples in iter(queue.get, None):
            respond(samples)

    server = Thread(target=serve, daemon=True)
    if scenario == "Server":
        server.start()
        # LoadGen owns a query's samples: copy their numbers.
        yield lambda samples: queue.put([_Sample(sample.id, sample.index) for sample in samples])
        queue.put(None)
        server.join()
    else:
        yield respond
    if errors:
        raise errors[0]


@dataclass(frozen=True)
class _Sample:
    """Copy of a LoadGen query sample."""

    id: int
    index: int


def read_summary(text: str) -> dict[str, Any]:
    """Return the `name : value` lines of LoadGen's summary, numbers as floats; its list of settings is left out."""
    values: dict[str, Any] = {}
    for line in text.partition("Test Parameters Used")[0].splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values[name.strip()] = _number(value.strip())
    return values


def _number(value: str) -> Any:
    """Convert a value to float if it is a number."""
    try:
        return float(value)
    except ValueError:
        return value


def summary_metrics(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics for reports: latency percentiles in ms, texts per second, validity by LoadGen's rules."""
    latencies = {
        f"p{percent}_ms": summary[key] / 1e6
        for percent in (50, 90, 99)
        if (key := f"{percent}.00 percentile latency (ns)") in summary
    }
    rates = ("QPS w/ loadgen overhead", "Samples per second", "Completed samples per second")
    rate = next((summary[name] for name in rates if name in summary), None)
    return {
        "valid": summary.get("Result is") == "VALID",
        "bound_met": summary.get("Performance constraints satisfied", "Yes") == "Yes",
        "texts_per_s": rate,
        **latencies,
    }
