"""The engines of one run, each in its worker, with what has been measured so far."""

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
from bert_bench.workers.environments import Environment
from bert_bench.workers.worker_process import WorkerProcess
from bert_bench.workloads import Case
from bert_runtime.tasks import TextInput

__all__ = ["EnginePool", "RunningEngine"]

_REST_S = 0.05
"""Pause before an engine's turn. After a call, ONNX Runtime's threads spin for 36 ms by default and PyTorch's for 10 ms
(CPU time of an idle process on 2 cores of a Zen 5 server), which would be taken from the engine that is next."""

_LONG_START_S = 20.0
"""A start that takes so long is not repeated."""


@dataclass(kw_only=True)
class RunningEngine:
    """An engine that is running, and its samples."""

    spec: EngineSpec
    worker: WorkerProcess
    ready_s: float
    first_answer_s: float
    size_bytes: int

    batch_tokens: dict[str, int] = field(default_factory=dict)
    """Padded tokens per run of many texts, by the case for which the engine chose them."""

    samples_ms: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    """By case, one list per round."""

    callers: dict[int, list[tuple[list[float], float]]] = field(default_factory=lambda: defaultdict(list))
    """By number of concurrent callers: per round the milliseconds of every call, and the seconds of the round."""
    callers_failed: dict[int, str] = field(default_factory=dict)

    environment: Environment | None = None
    """Where its process runs; `None` for the environment of this one."""

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.spec.name

    def accepts(self, case: Case) -> bool:
        """Whether the case is meant for this engine."""
        return self.spec.accepts(case)


class EnginePool:
    """Starts engines, drops those that fail together with what they measured, and remembers why.

    Use it as a context manager: leaving ends every process.
    """

    def __init__(self) -> None:
        self.running: list[RunningEngine] = []
        self.failures: dict[str, str] = {}
        self._processes = ExitStack()

    def start(self, spec: EngineSpec, text: TextInput, loads: int, environment: Environment | None = None) -> None:
        """Starts an engine `loads` times, has it answer `text`, and keeps the last process.

        One that takes very long to start, because it compiles, is started once.
        """
        starts: list[tuple[float, float]] = []
        with self.drop_on_failure(spec.name):
            while len(starts) < loads:
                with ExitStack() as process:
                    sleep(_REST_S)
                    begin = perf_counter()
                    worker = process.enter_context(WorkerProcess(environment))
                    size_bytes = worker.call("open", spec)
                    ready = perf_counter()
                    worker.call("answer", text)
                    starts.append((ready - begin, perf_counter() - begin))
                    if len(starts) == loads or starts[-1][1] > _LONG_START_S:
                        self._processes.push(process.pop_all())
                        break
            ready_s, first_answer_s = map(median, zip(*starts, strict=True))
            self.running.append(
                RunningEngine(
                    spec=spec,
                    worker=worker,
                    ready_s=ready_s,
                    first_answer_s=first_answer_s,
                    size_bytes=size_bytes,
                    environment=environment,
                )
            )

    @contextmanager
    def drop_on_failure(self, name: str, doing: str = "") -> Iterator[None]:
        """Turns a failure of that engine inside the block into its reason for not taking part."""
        try:
            yield
        except BenchError as error:
            self.failures[name] = f"{doing}: {error}" if doing else str(error)
            self.running = [each for each in self.running if each.name != name]

    def rotation(self, turn: int, case: Case) -> Iterator[RunningEngine]:
        """The running engines that take the case, beginning with another one each turn, with a rest before each."""
        engines = [each for each in self.running if each.accepts(case)]
        first = turn % max(1, len(engines))
        for running_engine in engines[first:] + engines[:first]:
            sleep(_REST_S)
            yield running_engine

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.close()
