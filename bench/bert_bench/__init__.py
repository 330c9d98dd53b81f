"""Benchmarks of bundles vs. other engines: latency, throughput, memory and fidelity."""

from bert_bench.benchmark import bench_bundle
from bert_bench.errors import BenchError, WorkerError
from bert_bench.reports.plot import plot_report, require_plotting
from bert_bench.reports.report import CaseReport, EngineReport, LatencyBreakdown, Report
from bert_bench.reports.text_table import report_table
from bert_bench.settings import Settings
from bert_bench.timing_statistics import Speedup, Timing

__all__ = [
    "BenchError",
    "CaseReport",
    "EngineReport",
    "LatencyBreakdown",
    "Report",
    "Settings",
    "Speedup",
    "Timing",
    "WorkerError",
    "bench_bundle",
    "plot_report",
    "report_table",
    "require_plotting",
]
