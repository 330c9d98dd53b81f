"""`bert-bench report`."""

from dataclasses import replace
from pathlib import Path

import click

from bert_export.cli.help import ExampleCommand
from bert_export.cli.options import output_option
from bert_export.cli.param_types import PATH
from bert_runtime.bundle.atomic_files import output_problem

__all__ = ["report"]


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-bench report result.json --markdown result.md --plot result.svg",
    ],
)
@click.argument("result", type=PATH)
@output_option("--title", help="The model's name, in place of the one in RESULT.")
@output_option("--markdown", type=PATH, help="Write the Markdown to this file instead of stdout.")
@output_option("--plot", type=PATH, help="Write a chart (PNG, SVG or PDF) to this file.")
def report(result: Path, title: str | None, markdown: Path | None, plot: Path | None) -> None:
    """Render RESULT, the JSON file of a run as Markdown and as a chart."""
    from bert_bench.reports.markdown import report_markdown
    from bert_bench.reports.plot import plot_comparison, require_plotting
    from bert_bench.reports.read_report import read_report

    for path in (markdown, plot):
        if path is not None and (problem := output_problem(path)):
            raise click.UsageError(problem)
    if plot is not None:
        require_plotting(plot)
    loaded = read_report(result)
    if title is not None:
        loaded = replace(loaded, given_title=title)
    if plot is not None:
        plot_comparison(loaded, plot)
    text = report_markdown(loaded)
    if markdown is None:
        click.echo(text, nl=False)
    else:
        markdown.write_text(text, encoding="utf-8")
