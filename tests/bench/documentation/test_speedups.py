"""Summaries of speed-ups, and README's table."""

import re
from pathlib import Path

import pytest

from bert_bench.documentation.catalog import read_catalog
from bert_bench.documentation.speed_table import speed_table
from bert_bench.documentation.speedups import compared_engines, speedup_table, summarize_speedups
from bert_bench.reports.read_report import read_report
from bert_bench.reports.report import CaseReport
from bert_bench.timing_statistics import Speedup

RESULTS = Path(__file__).parents[3] / "bench" / "results"


def case(name: str, **speedups: float) -> CaseReport:
    pairs = {other: Speedup(median=value, p10=value, p90=value, noisy=False) for other, value in speedups.items()}
    return CaseReport(
        name=name, stage="model", texts=0, tokens={"total": 1}, timings={}, speedups={}, pairs={"ours": pairs}
    )


def test_the_fastest_other_engine_counts_at_each_case() -> None:
    cases = [case("1x16", a=2.0, b=4.0), case("1x32", a=9.0, b=8.0), case("1x64")]
    summary = summarize_speedups(cases, "ours", ["a", "b"])
    assert summary is not None
    assert (summary.least, summary.geometric_mean, summary.most) == (2.0, pytest.approx(4.0), 8.0)
    assert summary.cases == ("1x16", "1x32")
    alone = summarize_speedups(cases, "ours", ["b"])
    assert alone is not None
    assert alone.least == 4.0


def test_no_comparison_has_no_summary() -> None:
    assert summarize_speedups([case("1x16", a=2.0)], "ours", ["c"]) is None
    assert summarize_speedups([case("1x16", a=2.0)], "theirs", ["a"]) is None


def test_only_engines_of_the_same_precision_are_compared() -> None:
    report = read_report(RESULTS / "peers-avx2" / "result.json")
    assert all(name.endswith("int8") for name in compared_engines(report, "bert-export-int8"))
    assert "pytorch" in compared_engines(report, "bert-export-fp32")


def test_a_run_without_peers_has_no_table() -> None:
    assert speedup_table(read_report(RESULTS / "peers-amx-callers" / "result.json")) == ""


def test_readme_table_has_a_row_per_model_and_states_its_conditions() -> None:
    table, _, conditions = speed_table(RESULTS).partition("\n\n")
    assert len(table.splitlines()) == 2 + len(read_catalog(RESULTS).speed_table)
    header = [cell.strip() for cell in table.splitlines()[0].strip("| ").split("|")]
    assert header[1] == "processor"
    for processor in ("with AMX", "without AMX", "Zen 4"):
        assert processor in table
    assert header[3:6] == ["over optimum", "over OpenVINO", "over CTranslate2"]
    for pattern in (
        r"2 threads",
        r"20\d\d-\d\d-\d\d, commit [0-9a-f]{10}(, [0-9a-f]{10})*\.",
        r"16 to 128 or 384 tokens",
        r"500 labelled texts",
        r"0\.99\d\d on average",
    ):
        assert re.search(pattern, conditions.replace("\n", " ")), pattern
