"""The service that runs one engine in a worker process: `python -m bert_bench.workers.service`.

It reads requests from stdin and writes replies to stdout, each a pickle. A request is `(method, arguments)`, where
`method` names a public method of `Service`; a reply is `(succeeded, value)`, where `value` is the result or the reason
of the failure. The process ends when its stdin does, so it never outlives its parent.
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
from bert_bench.mlperf_loadgen.scenario import LoadOptions, run_scenario
from bert_bench.workers.concurrent_clients import time_concurrent_calls
from bert_bench.workers.gemm_peak import measure_gemm_peaks
from bert_bench.workloads import Case
from bert_runtime.errors import BertError
from bert_runtime.machine import installed_versions
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task, TextInput

_MAX_REASON_CHARS = 300
"""Maximum characters of a failure's reason: some libraries put a page into their messages."""


class Service:
    """The requests that a worker serves: every public method is one."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._calls: dict[str, Callable[[], Any]] = {}

    @property
    def engine(self) -> Engine:
        """The opened engine."""
        assert self._engine is not None, "expected `open` to be called first"
        return self._engine

    def open(self, spec: EngineSpec) -> int:
        """Open the engine; return its size on disk in bytes."""
        self._engine = spec.open()
        return self._engine.size_bytes

    def predict(self, text: TextInput) -> None:
        """Predict one text without returning the prediction."""
        self.engine.predict(text)

    def raw_outputs(self, texts: Sequence[TextInput]) -> list[tuple[FloatArray, ...]]:
        """Return the raw outputs of each text, one array per window."""
        return self.engine.raw_outputs(texts)

    def set_cases(self, cases: Sequence[Case]) -> tuple[dict[str, int], dict[str, int]]:
        """Prepare the calls of all cases, so that bursts need no inputs; return `batch_tokens` and `streams`."""
        self._calls = {case.name: self.engine.timed_call(case) for case in cases}
        self.engine.close_unused()
        return self.engine.batch_tokens, self.engine.streams

    def time_burst(self, case: str, warm_up_calls: int, calls: int) -> list[float]:
        """Return the latencies of `calls` consecutive calls in milliseconds, after untimed warm-up calls."""
        call = self._calls[case]
        for _ in range(warm_up_calls):
            call()
        marks = [perf_counter()]
        for _ in range(calls):
            call()
            marks.append(perf_counter())
        return [(end - start) * 1e3 for start, end in pairwise(marks)]

    def time_concurrent_calls(
        self, texts: Sequence[TextInput], clients: int, duration_s: float
    ) -> tuple[list[float], float]:
        """Return each call's latency in milliseconds under concurrent clients, and the seconds it all took."""
        return time_concurrent_calls(self.engine.predict, texts, clients, duration_s)

    def run_loadgen(
        self, modules: Path, scenario: str, texts: Sequence[TextInput], options: LoadOptions
    ) -> dict[str, Any]:
        """Run a scenario of MLPerf LoadGen, whose Python module is in the folder `modules`; return its summary."""
        return run_scenario(self.engine, modules, scenario, texts, options)

    def measure_gemm_peaks(self, threads: int, duration_s: float) -> dict[str, float]:
        """Return the machine's peak GFLOP/s of large matmuls by precision."""
        return measure_gemm_peaks(threads, duration_s)

    def versions(self, distributions: Sequence[str]) -> dict[str, str]:
        """Return the installed versions of distributions in this process's environment."""
        return installed_versions(distributions)

    def prepare_artifacts(self, spec: PreparedSpec, folder: Path, texts: Sequence[TextInput]) -> None:
        """Write the files that an engine reads."""
        spec.prepare(folder, texts)

    def check_checkpoint(self, name: str | Path, sha256: str | None, uncompressed: str | None = None) -> CheckpointInfo:
        """Return facts about the checkpoint; raise unless its weights have that hash."""
        return check_checkpoint(name, sha256, uncompressed)

    def export_plain_graph(self, checkpoint: Path, task: Task, path: Path) -> None:
        """Export the checkpoint without fusions."""
        export_plain_graph(checkpoint, task, path)

    def export_bundle(self, checkpoint: Path, path: Path) -> None:
        """Export the checkpoint as `bert-export export` does by default."""
        export_bundle(checkpoint, path)


def failure_reason(error: BaseException) -> str:
    """Return one line of reason: the message of a `BertError`, else the last line of the traceback."""
    line = str(error) if isinstance(error, BertError) else traceback.format_exception_only(error)[-1]
    line = " ".join(line.split())
    return line if len(line) <= _MAX_REASON_CHARS else line[: _MAX_REASON_CHARS - 1] + "…"


def main() -> None:
    """Serve requests until stdin ends."""
    requests = sys.stdin.buffer
    # Output that libraries print to stdout must not mix with the replies.
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
        except BaseException as error:  # a panic in the tokenizer's Rust code is not an Exception
            traceback.print_exc()
            reply = (False, failure_reason(error))
        pickle.dump(reply, replies)
        replies.flush()


if __name__ == "__main__":
    main()
