"""A report read back from its JSON file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_bench.conditions import Conditions
from bert_bench.errors import BenchError
from bert_bench.fidelity import Fidelity
from bert_bench.reports.report import (
    FORMAT,
    CaseReport,
    ConcurrencyReport,
    ConcurrencyTiming,
    EngineReport,
    LatencyBreakdown,
    Report,
)
from bert_bench.timing_statistics import Speedup, Timing

__all__ = ["read_report"]


def read_report(path: Path) -> Report:
    """The report in `path`; raises `BenchError` for a file that is none, or of another format."""
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
        raise BenchError(f"{path}: not a whole benchmark: {type(error).__name__}: {error}") from None


def _report(values: Mapping[str, Any]) -> Report:
    fields = {name: values[name] for name in Report.__dataclass_fields__}
    for name in ("shapes", "singles", "stages", "offline"):
        fields[name] = tuple(map(_case, fields[name]))
    conditions = fields["conditions"]
    load = conditions["load_average"]
    return Report(
        **{
            **fields,
            "bundle": Path(fields["bundle"]),
            "checkpoint": _path(fields["checkpoint"]),
            "labelled": _path(fields["labelled"]),
            "engines": tuple(map(_engine, fields["engines"])),
            "splits": {name: LatencyBreakdown(**split) for name, split in fields["splits"].items()},
            "callers": tuple(map(_callers, fields["callers"])),
            "conditions": Conditions(
                **{
                    **conditions,
                    "load_average": None if load is None else tuple(load),
                    "argv": tuple(conditions["argv"]),
                }
            ),
            "notes": tuple(fields["notes"]),
        }
    )


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)


def _engine(values: Mapping[str, Any]) -> EngineReport:
    fidelity = values["fidelity"]
    return EngineReport(**{**values, "fidelity": None if fidelity is None else Fidelity(**fidelity)})


def _case(values: Mapping[str, Any]) -> CaseReport:
    fields = {name: values[name] for name in CaseReport.__dataclass_fields__}
    return CaseReport(
        **{
            **fields,
            "timings": {
                name: Timing(**{**timing, "round_medians_ms": tuple(timing["round_medians_ms"])})
                for name, timing in fields["timings"].items()
            },
            "speedups": _speedups(fields["speedups"]),
            "pairs": {name: _speedups(pairs) for name, pairs in fields["pairs"].items()},
        }
    )


def _speedups(values: Mapping[str, Any]) -> dict[str, Speedup]:
    return {name: Speedup(**speedup) for name, speedup in values.items()}


def _callers(values: Mapping[str, Any]) -> ConcurrencyReport:
    timings = {
        name: ConcurrencyTiming(**{**timing, "texts_per_s_rounds": tuple(timing["texts_per_s_rounds"])})
        for name, timing in values["timings"].items()
    }
    return ConcurrencyReport(**{**values, "timings": timings})
