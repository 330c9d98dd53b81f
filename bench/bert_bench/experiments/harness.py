"""What the experiments share: interleaved timing, and where their results go."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from bert_bench.conditions import arguments, current_conditions
from bert_bench.timing_statistics import Timing, summarize
from bert_runtime.machine import available_cores

__all__ = ["interleaved", "write_result"]


def write_result(path: Path, values: dict[str, Any], threads: int | None = None) -> None:
    """Writes `values` with the conditions of this run, the command among them."""
    conditions = asdict(current_conditions(threads or available_cores()))
    conditions["argv"] = ("python", "-m", f"bert_bench.experiments.{Path(sys.argv[0]).stem}", *arguments())
    text = json.dumps({"conditions": conditions, **values}, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def interleaved(runs: Mapping[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, Timing]:
    """Times every run in every round, `calls` times after one that warms up; another one begins in each round."""
    samples: dict[str, list[list[float]]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            runs[name]()
            times = [time.perf_counter()]
            for _ in range(calls):
                runs[name]()
                times.append(time.perf_counter())
            samples[name].append([(end - start) * 1e3 for start, end in pairwise(times)])
    return {name: summarize(each) for name, each in samples.items()}
