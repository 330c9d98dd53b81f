"""`bert-export bench`."""

import json
from dataclasses import replace
from pathlib import Path

import click

from bert_export.cli.common import CHECKPOINT, PATH, bundle_argument, columns_option, progress_printer, threads_option
from bert_runtime.records import read_records

__all__ = ["bench"]


@click.command()
@bundle_argument
@click.option(
    "--checkpoint",
    type=CHECKPOINT,
    help="Folder or hub id (org/name@revision) for the peers; by default the one the bundle was made from.",
)
@click.option("--texts", type=PATH, help="Texts of the throughput workload; by default messages of mixed lengths.")
@columns_option
@threads_option
@click.option("--quick", is_flag=True, help="Fewer repetitions: a first impression with more noise.")
@click.option("--json", "json_file", type=PATH, help="Write the whole report here.")
@click.option("--plot", type=PATH, help="Draw the report as a chart (PNG, SVG or PDF).")
def bench(
    bundle: Path,
    checkpoint: str | None,
    texts: Path | None,
    columns: dict[str, str] | None,
    threads: int | None,
    quick: bool,
    json_file: Path | None,
    plot: Path | None,
) -> None:
    """Compare BUNDLE's variants with PyTorch and ONNX Runtime's plain export on this machine."""
    from bert_bench import Settings, bench_bundle, plot_report, report_table, require_plotting

    for path in (json_file, plot):  # before the minutes of measuring, not after
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise click.UsageError(f"{path}: expected a file in a folder that exists")
    if plot is not None:
        require_plotting(plot)
    rows = None if texts is None else [record.text() for record in read_records(texts, columns)]
    settings = replace(Settings.quick() if quick else Settings(), threads=threads)
    report = bench_bundle(bundle, checkpoint=checkpoint, texts=rows, settings=settings, progress=progress_printer())
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if plot is not None:
        plot_report(report, plot)
    click.echo(report_table(report))
