"""`bert-export compress`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import columns_option, input_option, json_option, output_option
from bert_export.cli.output import predict_arguments, print_json, print_next
from bert_export.cli.param_types import CHECKPOINT, PATH, DurationType, TokensType
from bert_export.cli.progress import progress_printer
from bert_export.cli.terminal import print_heading, print_table, print_text
from bert_runtime.timing import format_ms

if TYPE_CHECKING:
    from bert_export.compression import CompressionResult

__all__ = ["compress"]

_goal_option = option_group("Goal")
_search_option = option_group("Search")


@click.command(
    cls=ExampleCommand,
    short_help="Search for a smaller model that is as good, and export it.",
    examples=[
        "bert-export compress intents small-bundle --train train.csv \\",
        "    --dev dev.csv --speedup 2",
        "# As fast as it gets within 1 % of the metric",
        "bert-export compress intents small-bundle --train train.csv \\",
        "    --dev dev.csv --max-drop 1 --budget 30m",
    ],
)
@click.argument("checkpoint", type=CHECKPOINT)
@click.argument("output", type=PATH)
@input_option("--train", "train_file", type=PATH, required=True, help="Labelled training file, as for train.")
@input_option(
    "--unlabelled",
    type=PATH,
    help="Further inputs of the same kind, without labels; the uncompressed model then labels all rows.",
)
@input_option(
    "--dev",
    "dev_file",
    type=PATH,
    required=True,
    help="Labelled file that smaller models are judged on; without --test, a part is set aside for the gate.",
)
@input_option("--test", "test_file", type=PATH, help="Labelled file for the gate, which the search never sees.")
@columns_option
@_goal_option(
    "--speedup",
    type=float,
    help="Least speed over the uncompressed INT8; of what is so fast, the best is chosen. With --max-drop, too, its "
    "loss must be within that.",
)
@_goal_option(
    "--max-drop",
    type=float,
    metavar="PCT",
    help="Largest loss of the task metric, in percent of the uncompressed INT8's; of what loses less, the fastest is "
    "chosen.",
)
@_search_option("--budget", type=DurationType(), default="60m", show_default=True, help="Time for the whole search.")
@_search_option(
    "--gate-share",
    type=float,
    show_default="0.5",
    help="Without --test: fraction of the dev rows that the search never sees, for the gate.",
)
@_search_option(
    "--vocabulary",
    type=click.Choice(["keep", "cut"]),
    default="keep",
    show_default=True,
    help="cut: drop subword tokens that no training row uses. This saves memory, not time; other texts get more.",
)
@_search_option(
    "--prune-tokens",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="auto: candidates may also drop tokens of low importance between layers, where the task and the "
    "length of dev's texts allow it; none: all tokens stay.",
)
@_search_option(
    "--max-tokens",
    type=TokensType(),
    metavar="[N|auto]",
    show_default="the checkpoint's maximum",
    help="Maximum tokens of a sequence; auto: what 99 % of the dev rows need. Longer texts are truncated.",
)
@_search_option(
    "--copies",
    type=int,
    show_default="as many as there may be time for, at most 9",
    help="Data augmentation: copies per training row, on average, with words replaced by similar ones, to learn from "
    "the whole model.",
)
@_search_option("--lr", type=float, default=3e-4, show_default=True, help="Peak learning rate of each training.")
@_search_option(
    "--hidden-weight",
    type=float,
    default=1.0,
    show_default=True,
    help="Weight of the cosine distance between hidden states. With 0, the first epoch is shorter.",
)
@_search_option("--batch-size", type=int, default=32, show_default=True, help="Sequences per batch.")
@_search_option("--seed", type=int, default=0, show_default=True, help="Seed of the split and of the training.")
@output_option("--plot", type=PATH, help="Draw the candidates to this file (png, svg, pdf).")
@output_option(
    "--force", is_flag=True, help="Replace the bundle and the search of an earlier run; an interrupted search goes on."
)
@json_option
def compress(
    checkpoint: str,
    output: Path,
    train_file: Path,
    dev_file: Path,
    test_file: Path | None,
    unlabelled: Path | None,
    columns: dict[str, str] | None,
    speedup: float | None,
    max_drop: float | None,
    budget: float,
    gate_share: float | None,
    max_tokens: int | str | None,
    plot: Path | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Search for a smaller model with the task metric kept, and export it to the bundle OUTPUT.

    CHECKPOINT is fine-tuned. Layers and feed-forward neurons are dropped by importance, and what is left learns from
    the whole model. Speed is measured on INT8 graphs on this machine, and the loss on rows that the search never saw.
    The folder OUTPUT.search keeps every candidate: repeat the command to go on after an interruption.
    """
    from bert_export.compression import CompressionSettings, Goal
    from bert_export.compression import compress as search
    from bert_export.compression.plot import check_plot, plot_candidates

    if speedup is None and max_drop is None:
        raise click.UsageError("expected --speedup, --max-drop or both")
    if test_file is not None and gate_share is not None:
        raise click.UsageError("expected one of --test and --gate-share: all rows of --test are the gate's")
    if plot is not None:
        check_plot(plot)
    goal = Goal(speedup, max_drop)
    length: dict[str, Any] = {"fit_length": True} if max_tokens == "auto" else {"max_tokens": max_tokens}
    if gate_share is not None:
        options["gate_fraction"] = gate_share
    settings = CompressionSettings(budget_s=budget, **length, **options)
    found = search(
        checkpoint, output, train_file, dev_file, goal,
        test=test_file, unlabelled=unlabelled, columns=columns, settings=settings, force=force,
        progress=progress_printer(),
    )  # fmt: skip
    _print_result(found, as_json=as_json)
    if plot is not None:
        plot_candidates(found.measured, plot)
    if not found.passed:
        raise click.ClickException(
            f"no bundle was written to {output}: {found.reason}; the best that was found is {found.bundle}"
        )
    print_next("bert-export", "predict", output, *predict_arguments(found.task))


def _print_result(found: "CompressionResult", *, as_json: bool) -> None:
    """Print the Pareto table and what was chosen."""
    if as_json:
        print_json(found.to_dict())
        return
    metric = found.measured[0]["metric"]
    header = ["layers", "width", "tokens", "ms", "speed", metric, "95 % interval", "loss", "Pareto"]
    rows = [
        [
            len(row["layers"]),
            row["intermediate_size"],
            row["token_pruning"] or "all",
            format_ms(row["latency_ms"]),
            f"{row['speedup']:.2f}×",
            f"{row['compressed']:.4f}",
            "{:.4f}–{:.4f}".format(*row["compressed_interval"]),
            f"{row['drop_percent']:.2f} %",
            "*" if row["pareto"] else "",
        ]
        for row in found.measured
    ]
    first = found.measured[0]
    base = [
        "uncompressed",
        "",
        "all",
        format_ms(first["uncompressed_latency_ms"]),
        "1.00×",
        f"{first['uncompressed']:.4f}",
    ]
    print_heading(f"candidates on the {first['rows']} dev rows of the search")
    print_table([header, [*base, "", "", ""], *rows], has_header=True)
    print_text(f"\n{found.reason}")
    if found.passed:
        click.echo(f"wrote {found.bundle}; its checkpoint is {found.checkpoint}")
