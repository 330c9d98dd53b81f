"""`bert-bench run`."""

import re
from dataclasses import replace
from pathlib import Path

import click

from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import columns_option, engine_option, output_option, threads_option
from bert_export.cli.output import print_json
from bert_export.cli.param_types import CHECKPOINT, PATH
from bert_export.cli.progress import stage_progress
from bert_export.cli.terminal import format_table

__all__ = ["run"]


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Split comma-separated names."""
    return None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())


def _shapes(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[tuple[int, int], ...] | None:
    """Parse comma-separated shapes, batch size × tokens, such as `1x16,8x128`."""
    shapes = [(name, re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", name)) for name in _names(context, parameter, value) or ()]
    if wrong := [name for name, match in shapes if match is None]:
        raise click.BadParameter(f"expected shapes such as 1x16,8x128, found {', '.join(wrong)}")
    return tuple((int(match[1]), int(match[2])) for _, match in shapes if match is not None) or None


def _list_engines(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Print every engine with its environment, tasks and description."""
    if not value:
        return
    from bert_bench.comparison_request import BUNDLE_ENGINES
    from bert_bench.engines.registry import COMPARED_ENGINES

    rows = [(name, "-", "all tasks", "bert-export") for name in BUNDLE_ENGINES]
    for name, engine in COMPARED_ENGINES.items():
        tasks = "all tasks" if engine.spec.tasks is None else ", ".join(engine.spec.tasks)
        rows.append((name, engine.environment or "-", tasks, engine.config.label))
    click.echo(format_table([("engine", "environment", "tasks", "description"), *rows]))
    context.exit()


model_option = option_group("Model")
workload_option = option_group("Workloads")
measurement_option = option_group("Measurement")


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-bench run checkpoint --quick",
        "# Two engines, at the shapes that matter here",
        "bert-bench run checkpoint --engines openvino-int8,optimum-int8 \\",
        "    --shapes 1x16,8x128 --output results",
    ],
)
@click.argument("checkpoint", type=CHECKPOINT)
@model_option(
    "--bundle", type=PATH, help="Bundle exported from CHECKPOINT, or compressed; by default it is exported now."
)
@engine_option(
    "--engines", callback=_names, help="Comma-separated engines, see --list; by default all that support the task."
)
@workload_option(
    "--workloads",
    callback=_names,
    default="grid,single,offline,concurrent",
    show_default=True,
    help="Comma-separated workloads; loadgen is one too.",
)
@workload_option(
    "--shapes", callback=_shapes, help="Shapes of the grid, batch size x tokens, such as 1x16,8x128; by default twelve."
)
@workload_option("--labelled", type=PATH, help="Labelled file for the task metric and the comparison of outputs.")
@workload_option(
    "--calibrate", type=PATH, help="Calibration texts for engines that quantize statically; by default built-in texts."
)
@workload_option(
    "--data", type=PATH, help="Folder with sst2, banking77 or squad_v1.1, each an offline (throughput) workload."
)
@workload_option(
    "--texts",
    type=PATH,
    multiple=True,
    help="Texts of an offline workload named after the file; repeatable. Without --data and --texts: synthetic "
    "messages of mixed lengths.",
)
@columns_option
@threads_option
@measurement_option("--rounds", type=click.IntRange(min=1), help="Rounds, in each of which everything is timed.")
@measurement_option("--quick", is_flag=True, help="Fewer repetitions: a first impression, more noise.")
@measurement_option("--cache", type=PATH, help="Folder for environments and engines' files; by default below ~/.cache.")
@output_option("--title", help="The model's name in the report and its chart; by default that of its size.")
@output_option("--output", type=PATH, help="Write result.json, result.md and result.png into this folder.")
@output_option("--force", is_flag=True, help="Replace the folder of --output.")
@output_option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@engine_option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_engines,
    help="Print the engines and exit.",
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
    title: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Compare CHECKPOINT's bundle with other engines on this machine.

    Engines whose packages conflict with this environment run in one of their own, which is installed when it is first
    needed: up to 1.5 GB each. Ctrl-C keeps what was prepared.
    """
    from bert_bench.comparison import compare_engines
    from bert_bench.comparison_request import ComparisonRequest
    from bert_bench.offline_texts import read_offline_texts
    from bert_bench.reports.markdown import report_markdown
    from bert_bench.reports.write_report import check_output, write_outputs
    from bert_bench.settings import Settings
    from bert_bench.workers.environments import bench_cache_dir

    if output is not None:
        check_output(output, force=force)
    settings = Settings.comparison(quick=quick)
    settings = replace(settings, threads=threads, rounds=rounds or settings.rounds, shapes=shapes or settings.shapes)
    request = ComparisonRequest(
        checkpoint=checkpoint, bundle=bundle, engines=engines, workloads=workloads, labelled=labelled,
        calibrate=calibrate, columns=columns, offline=read_offline_texts(data, texts, columns),
        cache=cache or bench_cache_dir(), settings=settings, title=title,
    )  # fmt: skip
    with stage_progress() as progress:
        report = compare_engines(request, progress)
    if output is not None:
        write_outputs(report, output)
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(report_markdown(report), nl=False)
