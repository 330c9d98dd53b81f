"""`bert-bench report`."""

from pathlib import Path

import click

from bert_export.cli.common import PATH

__all__ = ["report"]


@click.command()
@click.argument("result", type=PATH)
@click.option("--markdown", type=PATH, help="Write the Markdown here instead of to stdout.")
@click.option("--plot", type=PATH, help="Draw the chart (PNG, SVG or PDF).")
def report(result: Path, markdown: Path | None, plot: Path | None) -> None:
    """Show RESULT, the JSON file of a run, as Markdown and as a chart."""
    from bert_bench.reports.markdown import report_markdown
    from bert_bench.reports.plot import require_plotting
    from bert_bench.reports.ranking_plot import plot_ranking
    from bert_bench.reports.read_report import read_report

    for path in (markdown, plot):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise click.UsageError(f"{path}: expected a file in a folder that exists")
    if plot is not None:
        require_plotting(plot)
    found = read_report(result)
    if plot is not None:
        plot_ranking(found, plot)
    text = report_markdown(found)
    if markdown is None:
        click.echo(text, nl=False)
    else:
        markdown.write_text(text, encoding="utf-8")
