"""Read a report from its JSON file."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_bench.checkpoints import EncoderSize
from bert_bench.conditions import Conditions
from bert_bench.errors import BenchError
from bert_bench.fidelity import Fidelity
from bert_bench.json_fields import field_values
from bert_bench.reports.report import (
    FORMAT,
    CaseReport,
    ConcurrencyReport,
    ConcurrencyTiming,
    EngineReport,
    LatencyBreakdown,
    Report,
)
from bert_bench.timing_statistics import MIN_ROUNDS, Speedup, Timing

__all__ = ["read_report"]


def read_report(path: Path) -> Report:
    """Read the report that `bert-bench run` wrote to a JSON file.

    Raises:
        BenchError: the file is no report, is incomplete, or has another format.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"{path}: expected the JSON file of a benchmark: {error}") from None
    found = values.get("format") if isinstance(values, dict) else None
    if found != FORMAT:
        raise BenchError(f"{path}: expected a benchmark of format {FORMAT}, found {found}; measure again")
    try:
        return _report(values)
    except (KeyError, TypeError, AttributeError) as error:
        raise BenchError(f"{path}: incomplete benchmark: {type(error).__name__}: {error}") from None


def _report(values: Mapping[str, Any]) -> Report:
    fields = field_values(Report, values)
    for name in ("shapes", "singles", "stages", "offline"):
        fields[name] = tuple(map(_case, fields[name]))
    return Report(
        **{
            **fields,
            "bundle": Path(fields["bundle"]),
            "checkpoint": _path(fields["checkpoint"]),
            "labelled": _path(fields["labelled"]),
            "engines": tuple(map(_engine, fields["engines"])),
            "latency_breakdowns": {
                name: LatencyBreakdown(**breakdown) for name, breakdown in fields["latency_breakdowns"].items()
            },
            "concurrency": tuple(map(_concurrency, fields["concurrency"])),
            "conditions": _conditions(fields["conditions"]),
            "encoder": EncoderSize(**encoder) if (encoder := fields.get("encoder")) else None,
            "notes": tuple(fields["notes"]),
        }
    )


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)


def _conditions(values: Mapping[str, Any]) -> Conditions:
    load = values["load_average"]
    return Conditions(
        **{**values, "load_average": None if load is None else tuple(load), "argv": tuple(values["argv"])}
    )


def _engine(values: Mapping[str, Any]) -> EngineReport:
    fields = field_values(EngineReport, values)
    fidelity = fields["fidelity"]
    return EngineReport(**{**fields, "fidelity": None if fidelity is None else Fidelity(**fidelity)})


def _case(values: Mapping[str, Any]) -> CaseReport:
    fields = field_values(CaseReport, values)
    timings = {
        name: Timing(**{**timing, "round_medians_ms": tuple(timing["round_medians_ms"])})
        for name, timing in fields["timings"].items()
    }
    return CaseReport(
        **{
            **fields,
            "timings": timings,
            "speedups": _speedups(fields["speedups"], timings),
            "pairs": {name: _speedups(pairs, timings) for name, pairs in fields["pairs"].items()},
        }
    )


def _speedups(values: Mapping[str, Any], timings: Mapping[str, Timing]) -> dict[str, Speedup]:
    """Return speed-ups by engine; earlier releases took one round alone for noisy."""
    found = {name: Speedup(**speedup) for name, speedup in values.items()}
    few = {name for name in found if len(timings[name].round_medians_ms) < MIN_ROUNDS}
    return {name: replace(speedup, noisy=speedup.noisy or name in few) for name, speedup in found.items()}


def _concurrency(values: Mapping[str, Any]) -> ConcurrencyReport:
    fields = field_values(ConcurrencyReport, values)
    timings = {
        name: ConcurrencyTiming(**{**timing, "texts_per_s_rounds": tuple(timing["texts_per_s_rounds"])})
        for name, timing in fields["timings"].items()
    }
    return ConcurrencyReport(**{**fields, "timings": timings})
