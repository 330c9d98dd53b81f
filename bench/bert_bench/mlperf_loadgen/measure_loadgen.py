"""MLPerf LoadGen's scenarios on every running engine, one engine at a time."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from bert_bench.errors import BenchError
from bert_bench.mlperf_loadgen.scenario import SCENARIOS, LoadOptions, summary_metrics
from bert_bench.settings import Settings
from bert_bench.workers.artifact_cache import ArtifactCache
from bert_bench.workers.engine_pool import EnginePool, RunningEngine
from bert_bench.workers.environments import site_packages
from bert_runtime.tasks import TextInput

__all__ = ["measure_loadgen"]

_SERVER_LOAD = 0.5
"""Mean arrival rate of the Server scenario, as a fraction of the engine's sequential throughput."""

_DEFAULT_DURATION_S = 5.0
_SERVER_LATENCY_FACTOR = 10.0
"""Latency bound of the Server scenario, as a multiple of the engine's median sequential latency."""


def measure_loadgen(
    engine_pool: EnginePool,
    artifact_cache: ArtifactCache,
    texts: Sequence[TextInput],
    settings: Settings,
    progress: Callable[[str], None],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Run every LoadGen scenario on every running engine.

    Returns:
        By scenario and engine: `summary_metrics` and LoadGen's `summary`, or `error` with the reason of the failure.
    """
    results: dict[str, dict[str, dict[str, Any]]] = {scenario: {} for scenario in SCENARIOS}
    try:
        environment = artifact_cache.environment("loadgen")
        assert environment is not None
        modules = site_packages(environment)
    except BenchError as error:
        names = [engine.name for engine in engine_pool.running]
        return {scenario: {name: {"error": str(error)} for name in names} for scenario in SCENARIOS}
    for engine in engine_pool.running:
        progress(f"running LoadGen on {engine.name}")
        try:
            latency_ms = _sequential_latency_ms(engine, texts)
        except BenchError as error:
            for scenario in SCENARIOS:
                results[scenario][engine.name] = {"error": str(error)}
            continue
        options = LoadOptions(
            duration_s=settings.loadgen_s or _DEFAULT_DURATION_S,
            texts_per_s=_SERVER_LOAD * 1e3 / latency_ms,
            latency_ms=_SERVER_LATENCY_FACTOR * latency_ms,
        )
        server_options = {"arrivals_per_s": options.texts_per_s, "bound_ms": options.latency_ms}
        for scenario in SCENARIOS:
            try:
                summary = engine.worker.call("run_loadgen", modules, scenario, texts, options)
                results[scenario][engine.name] = {
                    **summary_metrics(summary),
                    **(server_options if scenario == "Server" else {}),
                    "summary": summary,
                }
            except BenchError as error:
                results[scenario][engine.name] = {"error": str(error)}
    return results


def _sequential_latency_ms(engine: RunningEngine, texts: Sequence[TextInput]) -> float:
    """Return the median latency over half a second of calls, one after another."""
    samples_ms, _ = engine.worker.call("time_concurrent_calls", texts, 1, 0.5)
    return median(samples_ms)
