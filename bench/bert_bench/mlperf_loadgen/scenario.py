"""MLPerf LoadGen as the driver of an engine: its scenarios' arrivals and its own clock.

These are measurements driven by LoadGen, not MLPerf results: another model, other data, shorter runs.
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

__all__ = ["SCENARIOS", "LoadOptions", "drive", "read_summary", "summary_metrics"]

SCENARIOS = ("SingleStream", "Offline", "Server")


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How long LoadGen drives, and how hard."""

    seconds: float
    """The least duration of a scenario."""
    texts_per_s: float
    """The mean rate of Server's arrivals."""
    latency_ms: float
    """The latency that 99 % of Server's queries must meet for LoadGen to call its run valid."""


def drive(
    engine: "Engine", modules: Path, scenario: str, texts: Sequence[TextInput], options: LoadOptions
) -> dict[str, Any]:
    """One scenario; LoadGen's summary as numbers by name. Raises `BenchError` where LoadGen wrote none."""
    loadgen = _loadgen(modules)
    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, scenario)
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = int(options.seconds * 1e3)
    settings.min_query_count = 1 if scenario == "Offline" else 64
    if scenario == "Offline":
        settings.offline_expected_qps = _offline_rate(engine, texts)
    settings.server_target_qps = options.texts_per_s
    settings.server_target_latency_ns = int(options.latency_ms * 1e6)
    with TemporaryDirectory() as folder, _issuer(engine, loadgen, scenario, texts) as issue:
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


def _offline_rate(engine: "Engine", texts: Sequence[TextInput]) -> float:
    """A little more than the texts per second that the engine answers at once, so that one query lasts long enough."""
    begin = perf_counter()
    engine.predict_batch(texts)
    return 1.2 * len(texts) / (perf_counter() - begin)


def _loadgen(modules: Path) -> ModuleType:
    """LoadGen, from a folder that every other module is looked for before."""
    if str(modules) not in sys.path:
        sys.path.append(str(modules))
    import mlperf_loadgen

    module: ModuleType = mlperf_loadgen
    return module


@contextmanager
def _issuer(engine: "Engine", loadgen: ModuleType, scenario: str, texts: Sequence[TextInput]) -> "Iterator[Any]":
    """What LoadGen hands queries to. Server's arrive on a schedule, so another thread answers them in their order."""
    errors: list[BaseException] = []

    def done(samples: Sequence[Any]) -> None:
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(each.id, 0, 0) for each in samples])

    def answer(samples: Sequence[Any]) -> None:
        try:
            if not errors:
                chosen = [texts[each.index] for each in samples]
                if scenario == "Offline":
                    engine.predict_batch(chosen)
                else:
                    engine.answer(chosen[0])
        except BaseException as error:  # LoadGen waits for every answer: an error is raised when it is done
            errors.append(error)
        done(samples)

    queue: SimpleQueue[list[Any] | None] = SimpleQueue()

    def serve() -> None:
        for samples in iter(queue.get, None):
            answer(samples)

    server = Thread(target=serve, daemon=True)
    if scenario == "Server":
        server.start()
        # The samples of a query are LoadGen's own memory: keep their numbers only.
        yield lambda samples: queue.put([_Sample(each.id, each.index) for each in samples])
        queue.put(None)
        server.join()
    else:
        yield answer
    if errors:
        raise errors[0]


@dataclass(frozen=True)
class _Sample:
    id: int
    index: int


def read_summary(text: str) -> dict[str, Any]:
    """Return the metrics of LoadGen's summary by name, numbers as floats; its list of settings is left out."""
    found: dict[str, Any] = {}
    for line in text.partition("Test Parameters Used")[0].splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip()] = _number(value.strip())
    return found


def _number(value: str) -> Any:
    try:
        return float(value)
    except ValueError:
        return value


def summary_metrics(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what reports show: milliseconds, texts per second, and whether LoadGen calls the run valid."""
    latencies = {
        f"p{share}_ms": summary[key] / 1e6
        for share in (50, 90, 99)
        if (key := f"{share}.00 percentile latency (ns)") in summary
    }
    rates = ("QPS w/ loadgen overhead", "Samples per second", "Completed samples per second")
    rate = next((summary[name] for name in rates if name in summary), None)
    return {
        "valid": summary.get("Result is") == "VALID",
        "bound_met": summary.get("Performance constraints satisfied", "Yes") == "Yes",
        "texts_per_s": rate,
        **latencies,
    }
