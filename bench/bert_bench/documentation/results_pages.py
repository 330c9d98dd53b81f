"""The pages of docs/results: an index, a page per machine and per topic, and the figures of every comparison."""

from functools import cached_property
from pathlib import Path

from bert_bench.documentation.catalog import Machine, Result, Topic, read_catalog
from bert_bench.documentation.experiment_charts import experiment_chart, picture_name
from bert_bench.documentation.facts import Facts, read_facts
from bert_bench.documentation.generators import generate
from bert_bench.documentation.speedups import (
    bundle_engines,
    compared_engines,
    mean_and_range,
    speedup_table,
    summarize_speedups,
)
from bert_bench.reports.markdown import report_markdown
from bert_bench.reports.markdown_table import markdown_table
from bert_bench.reports.plot import comparison_chart
from bert_bench.reports.read_report import read_report
from bert_bench.reports.report import Report
from bert_bench.reports.write_report import RESULT

__all__ = ["FIGURES", "ResultsPages"]

FIGURES = "figures"
"""Folder of docs/results with the figures of comparisons."""

_GENERATED = "<!-- Written by `python -m bert_bench.documentation` from bench/results. Do not edit. -->"
_INTRODUCTION = """
What was measured, by machine, newest first. [How speed is measured](method.md) holds for every comparison. Results that
no longer describe the code are marked and folded away. Every number comes from a JSON file in `bench/results`, which
also has the versions, the load and the command; `bert-bench compare` shows what changed between two of them."""


class ResultsPages:
    """The pages of the results in a folder.

    Args:
        results: the folder bench/results.

    Raises:
        DocumentationError: the catalog does not fit, or a file states no conditions.
        BenchError: a result cannot be read.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self.catalog = read_catalog(results)
        self.facts = {
            name: read_facts(results / name, result, self.catalog.renamed)
            for name, result in self.catalog.results.items()
        }

    @cached_property
    def reports(self) -> dict[str, Report]:
        """The comparisons by name."""
        return {
            name: read_report(self.results / name / RESULT)
            for name, result in self.catalog.results.items()
            if result.page in self.catalog.machines
        }

    def texts(self) -> dict[str, str]:
        """Return the text of every page by its path below docs/results."""
        pages = {"index.md": self._index()}
        pages |= {f"{name}.md": self._page(name, machine) for name, machine in self.catalog.machines.items()}
        pages |= {f"{name}.md": self._page(name, topic) for name, topic in self.catalog.topics.items()}
        pages |= {f"{FIGURES}/{name}.md": self._figures(name) for name in self.reports}
        return pages

    def _index(self) -> str:
        """Return the index: the comparisons of the current code, the pages, and where each file comes from."""
        pages: dict[str, Machine | Topic] = {**self.catalog.machines, **self.catalog.topics}
        links = "\n".join(f"* [{page.title}]({name}.md)" for name, page in pages.items())
        header = ["`bench/results/`…", "made by", "measured on", "date", "commit"]
        files = [
            [
                f"[`{name}`]({self._link(name)})",
                ", ".join(f"`{program}`" for program in facts.programs),
                "; ".join(facts.machines), facts.date, ", ".join(facts.commits),
            ]
            for name, facts in self.facts.items()
        ]  # fmt: skip
        return _page_text(
            "# Results",
            _INTRODUCTION.strip(),
            f"## The current code\n\n{self._current_table()}",
            f"## Pages\n\n{links}",
            "## Files\n\nThe whole command of each is on the page that its name leads to.",
            markdown_table(header, files),
        )

    def _current_table(self) -> str:
        """Return the speed-ups of all comparisons that are not superseded, on all machines."""
        rows = []
        for name, report in self.reports.items():
            result = self.catalog.results[name]
            for engine in bundle_engines(report) if result.timed and not result.superseded else ():
                summary = summarize_speedups(report.shapes, engine, compared_engines(report, engine))
                if summary is not None:
                    machine = f"[{self.catalog.machines[result.page].title}]({result.page}.md)"
                    precision = next(item.precision for item in report.engines if item.name == engine)
                    model = f"{report.title}, {precision.upper()}{_variant(result)}"
                    rows.append([model, mean_and_range(summary), machine, self.facts[name].date])
        return markdown_table(["model", "speed-up over the fastest other engine", "machine", "date"], rows)

    def _link(self, name: str) -> str:
        return f"{FIGURES}/{name}.md" if name in self.reports else f"{self.catalog.results[name].page}.md"

    def _page(self, name: str, page: Machine | Topic) -> str:
        """Return the page of a machine or topic: current results, newest first, then superseded ones, folded away."""
        results = {key: result for key, result in self.catalog.results.items() if result.page == name}
        names = list(results) if isinstance(page, Topic) else sorted(results, key=self._date, reverse=True)
        current = [f"## {self._title(key)}\n\n{self._result(key)}" for key in names if not results[key].superseded]
        superseded = [
            _folded(f"{self._title(key)}, {self.facts[key].date}: {results[key].superseded}", self._result(key))
            for key in names
            if results[key].superseded
        ]
        if not current:
            current = ["Nothing has been measured here with the current code."]
        if superseded:
            superseded = ["## Superseded", *superseded]
        return _page_text(f"# {page.title}", page.details.strip(), *current, *superseded)

    def _date(self, name: str) -> str:
        return self.facts[name].dates[-1]

    def _title(self, name: str) -> str:
        result = self.catalog.results[name]
        if name not in self.reports:
            return str(result.title)
        report = self.reports[name]
        names = bundle_engines(report) or [item.name for item in report.engines if item.name.startswith("bert-export")]
        precisions = [engine.precision.upper() for engine in report.engines if engine.name in names]
        kind = ""
        if not (report.shapes or report.singles):
            kind = ": MLPerf LoadGen" if report.loadgen else ": concurrent clients"
        variant = f" ({result.variant})" if result.variant else ""
        return f"{report.title}, {' and '.join(dict.fromkeys(precisions))}{kind}{variant}"

    def _result(self, name: str) -> str:
        """Return notes, table and origin of a result."""
        result, facts = self.catalog.results[name], self.facts[name]
        blocks = [result.notes.strip()]
        if name in self.reports:
            blocks += self._comparison(name)
        else:
            blocks += [*self._experiment_picture(name), generate(self.results, str(result.table), [name])]
            blocks.append(_commands(facts))
        origin = (
            f"`bench/results/{name}`: {facts.date}, commit {', '.join(facts.commits)}; {'; '.join(facts.machines)}."
        )
        return "\n\n".join([*filter(None, blocks), origin])

    def _experiment_picture(self, name: str) -> list[str]:
        """Return the chart of an experiment, nothing where it has none."""
        chart = experiment_chart(self.results, self.catalog, name)
        return [] if chart is None else [f"![{chart.title}]({FIGURES}/{picture_name(name)})"]

    def _comparison(self, name: str) -> list[str]:
        """Return the tables, the chart and the link of a comparison."""
        report, timed = self.reports[name], self.catalog.results[name].timed
        blocks = []
        if timed and (table := speedup_table(report)):
            blocks += ["Speed-ups over engines of the same precision: geometric mean, and least to greatest.", table]
        sections = {
            "concurrent": bool(report.concurrency) and not blocks,
            "mlperf": bool(report.loadgen) and not blocks,
            "fidelity": report.labelled is not None and any(engine.fidelity for engine in report.engines),
        }
        blocks += [generate(self.results, "comparison", [name, key]) for key, shown in sections.items() if shown]
        if timed and comparison_chart(report).sections:
            blocks.append(f"![Times and throughput of {len(report.engines)} engines]({FIGURES}/{name}.png)")
        return [*blocks, f"[All figures]({FIGURES}/{name}.md)."]

    def _figures(self, name: str) -> str:
        """Return the page with everything that a comparison measured."""
        report, facts, result = self.reports[name], self.facts[name], self.catalog.results[name]
        chart = f"{name}.png" if comparison_chart(report).sections else None
        superseded = f"**Superseded**: measured {result.superseded}." if result.superseded else ""
        machine = self.catalog.machines[result.page]
        body = report_markdown(report, chart=chart).partition("\n")[2].strip()
        head = f"[{machine.title}](../{result.page}.md), commit {', '.join(facts.commits)}, `bench/results/{name}`."
        return _page_text(
            f"# {self._title(name)}: {facts.date}", superseded, result.notes.strip(), head, body, _commands(facts)
        )


def _variant(result: Result) -> str:
    return f" ({result.variant})" if result.variant else ""


def _commands(facts: Facts) -> str:
    """Return the commands in a block that is folded away."""
    lines = "\n".join(facts.commands)
    title = "Command" if len(facts.commands) == 1 else f"{len(facts.commands)} commands"
    return _folded(title, f"```text\n{lines}\n```")


def _folded(title: str, body: str) -> str:
    """Return Markdown of which the title is seen until a reader opens it."""
    return f"<details markdown>\n<summary>{title}</summary>\n\n{body}\n\n</details>"


def _page_text(*blocks: str) -> str:
    return "\n\n".join([_GENERATED, *filter(None, blocks)]) + "\n"
