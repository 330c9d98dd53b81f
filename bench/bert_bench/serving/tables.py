"""Tables and chart of what `bert_bench.experiments.serving` measured."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_bench.reports.bar_chart import BarChart, BarRow, Panel, Section
from bert_bench.reports.chart_theme import OTHER, OURS
from bert_bench.reports.markdown_table import MISSING, markdown_table
from bert_bench.reports.titles import machine_title

__all__ = ["results_chart", "results_table"]

_LOADS = {"1x16": "1 text a request, 16 callers", "32x4": "32 texts a request, 4 callers"}
"""Loads that servers are compared on, by key."""

_LEGEND = """
1×16: one text a request, from 16 callers, each of which sends its next request once the last one is answered. CPU time
is the server's at 32×4. The cosine is an embedding's with that of the FP32 bundle: the least of 64 texts."""


def results_table(result: Path) -> str:
    """Return the figures in a result file as Markdown: the servers, those that do not run, and ours."""
    values = json.loads(result.read_text("utf-8"))
    blocks = []
    if servers := values.get("servers"):
        blocks += [_LEGEND, _server_table(servers), *_errors(servers)]
    if figures := _figures(values):
        blocks += ["`bert-export serve`, INT8:", markdown_table(["what", "measured", "goal"], figures)]
    if processes := values.get("processes"):
        blocks += ["One process of two threads, and two of one thread each, between which the callers are split:"]
        blocks += [_process_table(processes)]
    return "\n\n".join(blocks)


def _server_table(servers: Mapping[str, Any]) -> str:
    """Return a row per server, the fastest first."""
    header = [
        "server", *(f"requests/s at {_times(key)}" for key in _LOADS), "p50 at 1×1, ms", "CPU ms per text", "start, s",
        "memory, MB", "least cosine",
    ]  # fmt: skip
    rows = []
    for name in _by_speed(servers):
        found = servers[name]
        loads = found["loads"]
        failed = sum(load["failed"] for load in loads.values())
        rows.append([
            found["label"] + (f" ({failed} requests failed)" if failed else ""),
            *(f"{loads[key]['requests_per_s']:,.1f}" for key in _LOADS),
            f"{loads['1x1'].get('p50_ms', 0):.2f}",
            f"{loads['32x4'].get('server_cpu_ms_per_text', 0):.2f}",
            f"{found['first_answer_s']:.2f}",
            f"{found['resident_mb']:,.0f}",
            f"{found['cosine_with_fp32']['min']:.4f}" if found["cosine_with_fp32"] else MISSING,
        ])  # fmt: skip
    return markdown_table(header, rows)


def _times(load: str) -> str:
    """Return a load's key as readers see it, such as 1×16."""
    return load.replace("x", "×")


def _by_speed(servers: Mapping[str, Any]) -> list[str]:
    """Return the names of the servers that ran: by the first load's requests per second, in descending order."""
    key = next(iter(_LOADS))
    ran = [name for name, found in servers.items() if "loads" in found]
    return sorted(ran, key=lambda name: -float(servers[name]["loads"][key]["requests_per_s"]))


def _errors(servers: Mapping[str, Any]) -> list[str]:
    """Return the list of servers that do not run, with their errors."""
    lines = [f"* {found['label']}: `{found['error']}`" for found in servers.values() if "loads" not in found]
    return ["Not measured:", "\n".join(lines)] if lines else []


def _figures(values: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of our server's figures and goals."""
    rows = []
    if latency := values.get("latency"):
        parts = (
            f"{latency['request_p50_ms']:.2f} − {latency['empty_handler_p50_ms']:.2f} − {latency['model_p50_ms']:.2f}"
        )
        rows.append([
            "p50 of a request, less an empty handler's and the model's, ms",
            f"{parts} = {latency['added_p50_ms']:.2f}", "≤ 0.5",
        ])  # fmt: skip
    goals = {"1x1": "≤ 2", "1x16": "≤ 2", "32x1": "≤ 1.15", "32x4": "≤ 1.15"}
    for load, found in values.get("cpu", {}).items():
        rows.append(
            [f"processor time per text over in-process, at {_times(load)}", f"{found['ratio']:.2f}×", f"{goals[load]}×"]
        )
    if overload := values.get("overload"):
        rows += _overload_rows(overload)
    if start := values.get("start"):
        rows.append(["from start to the first answer, median, s", f"{start['median']:.2f}", "≤ 1"])
    if memory := values.get("memory"):
        resident, requests = memory["resident_mb"], memory["requests"]
        title = f"memory after the first answer, {requests // 10:,} and {requests:,} mixed requests, MB"
        sizes = f"{resident['first_answer']:.0f}, {resident['after_a_tenth']:.0f}, {resident['end']:.0f}"
        rows.append([title, f"{sizes} ({memory['growth_after_a_tenth']:+.1%} since a tenth)", "≤ +5 %"])
    return rows


def _overload_rows(overload: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the overload."""
    limit = overload["max_queue_ms"] + 2 * overload["unloaded_p99_ms"]
    recovery = overload["recovery_s"]
    memory = overload["resident_mb"]
    texts, offered = overload["texts_per_request"], overload["offered_per_s"]
    title = f"at {offered:.0f} requests/s of {texts} texts, capacity {overload['capacity_per_s']:.0f}"
    return [
        [f"{title}: answered, share of capacity", f"{overload['goodput_of_capacity']:.2f}", "≥ 0.9"],
        ["p99 of what is admitted, ms", f"{overload['admitted_p99_ms']:,.0f}", f"≤ {limit:,.0f}"],
        ["p99 of 429, ms", f"{overload['refused_p99_ms']:.1f}", "≤ 50"],
        ["recovery, s", MISSING if recovery is None else f"{recovery:.2f}", "≤ 2"],
        ["memory at its start, most, end, MB", f"{memory[0]:.0f}, {max(memory):.0f}, {memory[-1]:.0f}", "flat"],
    ]


def _process_table(processes: Mapping[str, Any]) -> str:
    header = ["processes", *(f"requests/s at {_times(key)}" for key in _LOADS), "memory, MB"]
    rows = [
        [count, *(f"{found['requests_per_s'][key]:,.1f}" for key in _LOADS), f"{found['resident_mb']:.0f}"]
        for count, found in processes.items()
    ]
    return markdown_table(header, rows)


def results_chart(result: Path) -> BarChart:
    """Return the chart of requests per second; without sections if no servers were compared."""
    values = json.loads(result.read_text("utf-8"))
    servers = values.get("servers", {})
    names = _by_speed(servers)
    rows = [
        BarRow(
            name=name, title=servers[name]["label"], emphasized=_is_ours(name),
            role=f"{OURS if _is_ours(name) else OTHER}-{servers[name]['precision']}",
        )
        for name in names
    ]  # fmt: skip
    panels = []
    for key, title in _LOADS.items():
        speeds = {name: servers[name]["loads"][key]["requests_per_s"] for name in names}
        speeds = {name: value for name, value in speeds.items() if value}
        labels = {name: f"{value:,.0f}" if value >= 10 else f"{value:.1f}" for name, value in speeds.items()}
        panels.append(Panel(title=title, values=speeds, labels=labels))
    machine = machine_title(values["conditions"]["machine"])
    subtitle = f"Higher is better. {machine}; all-MiniLM-L6-v2, {values['tokens']['mean']} tokens a text on average"
    sections = [Section(title="", panels=panels)] if names else []
    return BarChart(title="Requests per second", subtitle=subtitle, rows=rows, sections=sections)


def _is_ours(name: str) -> bool:
    return name.startswith("bert-export")
