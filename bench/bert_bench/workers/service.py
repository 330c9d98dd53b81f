"""The process around one engine: reads requests from stdin, answers on stdout (`python -m bert_bench.workers.service`).

A frame is a pickle, in both directions: a request `(method, arguments)` of `Service`, a reply `(succeeded, value)`
whose value is the reason where it failed. The process ends when its stdin does, so it never outlives its parent.
"""

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from bert_bench.checkpoints import CheckpointInfo, check_checkpoint, export_bundle
from bert_bench.engines import Engine, EngineSpec, PreparedSpec
from bert_bench.engines.onnxruntime_plain import export_plain_graph
from bert_bench.mlperf_loadgen.scenario import drive
from bert_bench.workers.concurrent_clients import time_concurrent_calls
from bert_bench.workers.gemm_peak import measure_gemm_peaks
from bert_bench.workloads import Case
from bert_runtime.errors import BertError
from bert_runtime.machine import installed_versions
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task, TextInput

_MAX_REASON = 300
"""Characters of a reason at most: some libraries put a page into their messages."""


class Service:
    """What a worker can be asked; every public method is a request."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._calls: dict[str, Callable[[], Any]] = {}

    @property
    def engine(self) -> Engine:
        """The engine that was opened."""
        assert self._engine is not None, "asked before `open`"
        return self._engine

    def open(self, spec: EngineSpec) -> int:
        """Opens the engine; returns its size on disk in bytes."""
        self._engine = spec.open()
        return self._engine.size_bytes

    def answer(self, text: TextInput) -> None:
        """Answers one text and keeps the answer to itself."""
        self.engine.answer(text)

    def rows(self, texts: Sequence[TextInput]) -> list[tuple[FloatArray, ...]]:
        """Raw outputs of each text, one array per window of it."""
        return self.engine.rows(texts)

    def prepare(self, cases: Sequence[Case]) -> dict[str, int]:
        """Takes the inputs of all cases, so that a burst need not carry them; returns `Engine.batch_tokens`."""
        self._calls = {case.name: self.engine.call(case) for case in cases}
        return self.engine.batch_tokens

    def burst(self, case: str, warm_up_calls: int, calls: int) -> list[float]:
        """Times `calls` calls one by one, in milliseconds, after a few that are not timed."""
        call = self._calls[case]
        for _ in range(warm_up_calls):
            call()
        marks = [perf_counter()]
        for _ in range(calls):
            call()
            marks.append(perf_counter())
        return [(end - start) * 1e3 for start, end in pairwise(marks)]

    def concurrent(self, texts: Sequence[TextInput], callers: int, seconds: float) -> tuple[list[float], float]:
        """Milliseconds of each call that so many threads made in that time, and the seconds it took."""
        return time_concurrent_calls(self.engine.answer, texts, callers, seconds)

    def loadgen(self, modules: Path, scenario: str, texts: Sequence[TextInput], options: Any) -> dict[str, Any]:
        """Lets MLPerf LoadGen, found in the folder `modules`, drive the engine."""
        return drive(self.engine, modules, scenario, texts, options)

    def measure_gemm_peaks(self, threads: int, seconds: float) -> dict[str, float]:
        """The machine's fastest large matrix products by precision, in GFLOP/s."""
        return measure_gemm_peaks(threads, seconds)

    def versions(self, distributions: Sequence[str]) -> dict[str, str]:
        """What is installed in this process's environment."""
        return installed_versions(distributions)

    def make(self, spec: PreparedSpec, folder: Path, texts: Sequence[TextInput]) -> None:
        """Makes the files that an engine reads."""
        spec.prepare(folder, texts)

    def check_checkpoint(self, name: str | Path, sha256: str | None) -> CheckpointInfo:
        """What is known about the checkpoint; raises unless it is the one that is meant."""
        return check_checkpoint(name, sha256)

    def export_plain_graph(self, checkpoint: Path, task: Task, path: Path) -> None:
        """Exports the checkpoint without fusions."""
        export_plain_graph(checkpoint, task, path)

    def export_bundle(self, checkpoint: Path, path: Path) -> None:
        """Exports the checkpoint as this project does."""
        export_bundle(checkpoint, path)


def reason(error: BaseException) -> str:
    """One line that says what went wrong: a message of ours as it is, anything else as a traceback ends."""
    line = str(error) if isinstance(error, BertError) else traceback.format_exception_only(error)[-1]
    line = " ".join(line.split())
    return line if len(line) <= _MAX_REASON else line[: _MAX_REASON - 1] + "…"


def main() -> None:
    """Serves requests until stdin ends."""
    requests = sys.stdin.buffer
    # Whatever a library prints must not land between the frames.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    service = Service()
    while True:
        try:
            method, arguments = pickle.load(requests)
        except EOFError:
            return
        try:
            reply = (True, getattr(service, method)(*arguments))
        except BaseException as error:  # a panic in the tokenizer's Rust code is no Exception
            traceback.print_exc()
            reply = (False, reason(error))
        pickle.dump(reply, replies)
        replies.flush()


if __name__ == "__main__":
    main()
