"""The engine pool: the running engines of a benchmark, each in its worker process, and their samples so far."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter, sleep
from types import TracebackType
from typing import Self

from bert_bench.engines import EngineSpec
from bert_bench.errors import BenchError
from bert_bench.timing_statistics import rotated
from bert_bench.workers.environments import Environment
from bert_bench.workers.worker_process import WorkerProcess
from bert_bench.workloads import Case
from bert_runtime.tasks import TextInput

__all__ = ["EnginePool", "RunningEngine"]

_REST_S = 0.05
"""Pause before an engine is timed. After a call, ONNX Runtime's threads spin for 36 ms by default and PyTorch's for
10 ms (CPU time of an idle process on 2 cores of a Zen 5 server), which would slow the next engine down."""

_LONG_START_S = 20.0
"""Start time in seconds from which a start is not repeated."""


@dataclass(kw_only=True)
class RunningEngine:
    """An engine in its worker process, and its samples so far."""

    spec: EngineSpec
    worker: WorkerProcess
    ready_s: float
    """Seconds from the start of the process until the model is loaded; median over the starts."""
    first_prediction_s: float
    """Seconds from the start of the process until the first prediction; median over the starts."""
    size_bytes: int
    """Graph and weights on disk."""

    batch_tokens: dict[str, int] = field(default_factory=dict)
    """By case: padded tokens per batch, where the engine chose them by trial."""
    streams: dict[str, int] = field(default_factory=dict)
    """By case: batches at a time, where the engine chose several."""

    samples_ms: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    """By case: one list of latencies per round."""

    concurrent_rounds: dict[int, list[tuple[list[float], float]]] = field(default_factory=lambda: defaultdict(list))
    """By number of concurrent clients: per round, every call's latency in ms and the round's duration in s."""
    concurrent_failures: dict[int, str] = field(default_factory=dict)
    """By number of concurrent clients: why the engine failed."""

    environment: Environment | None = None
    """The environment of its process; `None` for the environment of this one."""

    @property
    def name(self) -> str:
        """The engine's name in reports."""
        return self.spec.name

    def accepts(self, case: Case) -> bool:
        """Return whether the engine is timed on the case."""
        return self.spec.accepts(case)


class EnginePool:
    """Starts engines and keeps those that run; an engine that fails is dropped with its samples, and the reason kept.

    Use it as a context manager: leaving the block ends every process.
    """

    def __init__(self) -> None:
        self.running: list[RunningEngine] = []
        self.failures: dict[str, str] = {}
        """By engine that is not running: the reason."""
        self._processes = ExitStack()

    def start(self, spec: EngineSpec, text: TextInput, starts: int, environment: Environment | None = None) -> None:
        """Start an engine several times, predict a text each time, and keep the last process.

        An engine that takes longer than 20 s to start (because it compiles) is started once.

        Args:
            spec: the engine.
            text: the text of the first prediction.
            starts: number of starts, at least 1; the start times are medians over them.
            environment: the environment of its process.
        """
        times: list[tuple[float, float]] = []
        with self.drop_on_failure(spec.name):
            while len(times) < starts:
                with ExitStack() as process:
                    sleep(_REST_S)
                    begin = perf_counter()
                    worker = process.enter_context(WorkerProcess(environment))
                    size_bytes = worker.call("open", spec)
                    ready = perf_counter()
                    worker.call("predict", text)
                    times.append((ready - begin, perf_counter() - begin))
                    if len(times) == starts or times[-1][1] > _LONG_START_S:
                        self._processes.push(process.pop_all())
                        break
            ready_s, first_prediction_s = map(median, zip(*times, strict=True))
            self.running.append(
                RunningEngine(
                    spec=spec,
                    worker=worker,
                    ready_s=ready_s,
                    first_prediction_s=first_prediction_s,
                    size_bytes=size_bytes,
                    environment=environment,
                )
            )

    def stop(self, name: str) -> None:
        """End an engine's process, and forget the engine."""
        for engine in self.running:
            if engine.name == name:
                engine.worker.stop()
        self.running = [engine for engine in self.running if engine.name != name]

    @contextmanager
    def drop_on_failure(self, name: str, activity: str = "") -> Iterator[None]:
        """Drop the engine if the block raises a `BenchError`, and keep the error as the reason.

        Args:
            name: the engine's name.
            activity: what the block does, such as "while warming up"; precedes the reason.
        """
        try:
            yield
        except BenchError as error:
            self.failures[name] = f"{activity}: {error}" if activity else str(error)
            self.running = [engine for engine in self.running if engine.name != name]

    def rotated(self, round_index: int, case: Case) -> Iterator[RunningEngine]:
        """Yield the engines that accept the case, each after a rest.

        The order is cyclic and begins one engine later each round, so that no engine is always the first.
        """
        for engine in rotated([engine for engine in self.running if engine.accepts(case)], round_index):
            sleep(_REST_S)
            yield engine

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._processes.close()
