"""MLPerf LoadGen's scenarios on every engine, one engine at a time."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from bert_bench.errors import BenchError
from bert_bench.mlperf_loadgen.scenario import SCENARIOS, LoadOptions, summary_metrics
from bert_bench.settings import Settings
from bert_bench.workers.artifact_cache import ArtifactCache
from bert_bench.workers.engine_pool import EnginePool, RunningEngine
from bert_bench.workers.environments import installed_modules
from bert_runtime.tasks import TextInput

__all__ = ["measure_loadgen"]

_SERVER_LOAD = 0.5
"""Server's mean rate of arrivals, as a share of what the engine answers one after another."""

_DEFAULT_SECONDS = 5.0
_SERVER_LATENCIES = 10.0
"""Server's bound on the latency, in median latencies of SingleStream."""


def measure_loadgen(
    engine_pool: EnginePool,
    artifact_cache: ArtifactCache,
    texts: Sequence[TextInput],
    settings: Settings,
    progress: Callable[[str], None],
) -> dict[str, dict[str, dict[str, Any]]]:
    """By scenario and engine: LoadGen's summary_metrics and summary, or `error` with the reason why there are none."""
    found: dict[str, dict[str, dict[str, Any]]] = {scenario: {} for scenario in SCENARIOS}
    try:
        environment = artifact_cache.environment("loadgen")
        assert environment is not None
        modules = installed_modules(environment)
    except BenchError as error:
        return {scenario: {each.name: {"error": str(error)} for each in engine_pool.running} for scenario in SCENARIOS}
    for running_engine in engine_pool.running:
        progress(f"LoadGen drives {running_engine.name}")
        try:
            call_ms = _call_ms(running_engine, texts)
        except BenchError as error:
            for scenario in SCENARIOS:
                found[scenario][running_engine.name] = {"error": str(error)}
            continue
        for scenario in SCENARIOS:
            options = LoadOptions(
                seconds=settings.loadgen_s or _DEFAULT_SECONDS,
                texts_per_s=_SERVER_LOAD * 1e3 / call_ms,
                latency_ms=_SERVER_LATENCIES * call_ms,
            )
            try:
                summary = running_engine.worker.call("loadgen", modules, scenario, texts, options)
                asked = {"arrivals_per_s": options.texts_per_s, "bound_ms": options.latency_ms}
                found[scenario][running_engine.name] = {
                    **summary_metrics(summary), **(asked if scenario == "Server" else {}), "summary": summary,
                }  # fmt: skip
            except BenchError as error:
                found[scenario][running_engine.name] = {"error": str(error)}
    return found


def _call_ms(running_engine: RunningEngine, texts: Sequence[TextInput]) -> float:
    """About how long one text takes."""
    samples, _ = running_engine.worker.call("concurrent", texts, 1, 0.5)
    return median(samples)
