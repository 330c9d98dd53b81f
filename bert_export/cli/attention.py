"""`bert-export attention`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bert_export.cli.help import ExampleCommand
from bert_export.cli.options import bundle_argument, engine_option, input_option, json_option, output_option
from bert_export.cli.output import print_json
from bert_export.cli.param_types import PATH
from bert_export.cli.terminal import print_heading, print_table

if TYPE_CHECKING:
    from bert_runtime import Attention

__all__ = ["attention"]

_SHOWN_KEYS = 3
"""Keys that are printed for each query."""


@click.command(
    cls=ExampleCommand,
    short_help="Show which tokens of TEXT attend to which.",
    examples=[
        'bert-export attention bundle "I lost my card" --plot attention.png',
        "# One head of one layer, with its numbers",
        'bert-export attention bundle "I lost my card" --layer 2 --head 5 \\',
        "    --plot head.svg",
    ],
)
@bundle_argument
@click.argument("text")
@input_option("--pair", help="Second text of a pair; of question answering, the context.")
@input_option(
    "--max-tokens",
    type=int,
    show_default="128, or the bundle's if that is less",
    help="Tokens to read of the text; the rest is truncated. Memory grows with the square.",
)
@output_option("--layer", type=int, show_default="all", help="Number of a layer, from 0.")
@output_option("--head", type=int, show_default="all", help="Number of a head, from 0.")
@output_option("--plot", type=PATH, help="File for a picture of the maps (PNG, SVG or PDF).")
@engine_option("--threads", type=click.IntRange(min=1), show_default="one per available core", help="Threads.")
@json_option
def attention(
    bundle: Path,
    text: str,
    pair: str | None,
    max_tokens: int | None,
    layer: int | None,
    head: int | None,
    plot: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Show which tokens of TEXT attend to which, by layer and head.

    BUNDLE needs the graph of export --attention. --plot draws a map for each layer and head, --json prints the
    probabilities. Otherwise, the tokens that each token attends to most are printed, by the mean over layers and heads.
    """
    if plot is not None:
        from bert_export.attention_plot import check_plot, plot_attention

        check_plot(plot)  # before the model is loaded
    from bert_runtime import load_attention

    model = load_attention(bundle, max_tokens=max_tokens, threads=threads)
    found = model(text if pair is None else (text, pair)).select(layer, head)
    if found.truncated:
        click.echo(f"the text has more tokens than the {model.max_tokens} that were read; see --max-tokens", err=True)
    if plot is not None:
        plot_attention(found, plot)
        click.echo(f"wrote {plot}", err=True)
    if as_json:
        print_json(found.to_dict())
    elif plot is None:
        _print_keys(found)


def _print_keys(attention: "Attention") -> None:
    """Print the keys that each query attends to most."""
    means = attention.probabilities.mean(axis=(0, 1))
    num_maps = len(attention.layers) * len(attention.heads)
    layers, heads = attention.layers, attention.heads
    print_heading(f"layer {layers[0]}, head {heads[0]}" if num_maps == 1 else f"mean of {num_maps} maps")
    rows = [["token", "attends to"]]
    for query, probabilities in zip(attention.words, means, strict=True):
        keys = (-probabilities).argsort(kind="stable")[:_SHOWN_KEYS]
        rows.append([query, ", ".join(f"{attention.words[key]} {probabilities[key]:.2f}" for key in keys)])
    print_table(rows, has_header=True)
