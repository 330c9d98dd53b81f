"""`bert-bench run`."""

import re
from dataclasses import replace
from pathlib import Path

import click

from bert_export.cli.common import CHECKPOINT, PATH, columns_option, print_json, progress_printer, table, threads_option

__all__ = ["run"]


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Names between commas."""
    return None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())


def _shapes(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[tuple[int, int], ...] | None:
    """Rows × tokens of batches, such as `1x16,8x128`."""
    found = [(name, re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", name)) for name in _names(context, parameter, value) or ()]
    if wrong := [name for name, match in found if match is None]:
        raise click.BadParameter(f"expected shapes such as 1x16,8x128, found {', '.join(wrong)}")
    return tuple((int(match[1]), int(match[2])) for _, match in found if match is not None) or None


def _list(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Prints every engine with what it is, where it runs and what it does."""
    if not value:
        return
    from bert_bench.comparison_request import BUNDLE_ENGINES
    from bert_bench.engines.registry import COMPARED_ENGINES

    rows = [(name, "-", "all tasks", "this project") for name in BUNDLE_ENGINES]
    for name, peer in COMPARED_ENGINES.items():
        tasks = "all tasks" if peer.spec.tasks is None else ", ".join(peer.spec.tasks)
        rows.append((name, peer.environment or "-", tasks, peer.config.label))
    click.echo(table([("engine", "environment", "tasks", "what it is"), *rows]))
    context.exit()


@click.command()
@click.argument("checkpoint", type=CHECKPOINT)
@click.option("--bundle", type=PATH, help="What was exported from CHECKPOINT; by default it is exported now.")
@click.option("--engines", callback=_names, help="Engines to measure, between commas; by default all; see --list.")
@click.option(
    "--workloads",
    callback=_names,
    default="grid,single,offline,concurrent",
    show_default=True,
    help="What to measure, between commas; also loadgen.",
)
@click.option(
    "--shapes", callback=_shapes, help="The grid's batches of token ids, such as 1x16,8x128; by default twelve."
)
@click.option("--labelled", type=PATH, help="Labelled file for the task metric and the comparison of outputs.")
@click.option("--calibrate", type=PATH, help="Texts for engines that quantize statically; by default shipped ones.")
@click.option("--data", type=PATH, help="Folder with sst2, banking77 and squad_v1.1 for the throughput workloads.")
@click.option(
    "--texts",
    type=PATH,
    multiple=True,
    help="Texts of a throughput workload that is named after the file; repeatable. Without --data and --texts it is "
    "messages of mixed lengths.",
)
@columns_option
@threads_option
@click.option("--rounds", type=click.IntRange(min=1), help="How often everything is measured.")
@click.option("--quick", is_flag=True, help="Fewer repetitions: a first impression with more noise.")
@click.option("--cache", type=PATH, help="Where environments and engines' files are kept; by default below ~/.cache.")
@click.option("--output", type=PATH, help="Folder to write result.json, result.md and result.png into.")
@click.option("--force", is_flag=True, help="Replace the folder of --output.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="Print the engines and exit."
)
def run(
    checkpoint: str,
    bundle: Path | None,
    engines: tuple[str, ...] | None,
    workloads: tuple[str, ...],
    shapes: tuple[tuple[int, int], ...] | None,
    labelled: Path | None,
    calibrate: Path | None,
    data: Path | None,
    texts: tuple[Path, ...],
    columns: dict[str, str] | None,
    threads: int | None,
    rounds: int | None,
    quick: bool,
    cache: Path | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Measure CHECKPOINT's bundle beside its peers on this machine.

    Peers whose packages clash with this environment get one of their own, which is made when they are first measured:
    several hundred megabytes each. Ctrl-C keeps what was prepared.
    """
    from bert_bench.comparison import compare_engines
    from bert_bench.comparison_request import ComparisonRequest
    from bert_bench.offline_texts import read_offline_texts
    from bert_bench.reports.markdown import report_markdown
    from bert_bench.reports.write_report import check_output, write_outputs
    from bert_bench.settings import Settings
    from bert_bench.workers.environments import cache_folder

    if output is not None:
        check_output(output, force=force)
    settings = Settings.comparison(quick=quick)
    settings = replace(settings, threads=threads, rounds=rounds or settings.rounds, shapes=shapes or settings.shapes)
    request = ComparisonRequest(
        checkpoint=checkpoint, bundle=bundle, engines=engines, workloads=workloads, labelled=labelled,
        calibrate=calibrate, columns=columns, offline=read_offline_texts(data, texts, columns),
        cache=cache or cache_folder(), settings=settings,
    )  # fmt: skip
    report = compare_engines(request, progress_printer())
    if output is not None:
        write_outputs(report, output)
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(report_markdown(report), nl=False)
