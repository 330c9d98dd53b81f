"""`bert-export export`."""

from pathlib import Path
from typing import Any

import click

from bert_export.cli.common import (
    CHECKPOINT,
    PATH,
    bundle_argument,
    columns_option,
    given,
    json_option,
    print_json,
    progress_printer,
    task_options,
)
from bert_export.cli.inspect import summary
from bert_export.targets import PRECISIONS
from bert_runtime.bundle.manifest import PADDING_MODES

__all__ = ["export"]


@click.command()
@click.argument("checkpoint", type=CHECKPOINT)
@bundle_argument
@click.option("--task", help="What the model is for, where the checkpoint does not say.")
@click.option(
    "--target",
    "devices",
    type=click.Choice(list(PRECISIONS)),
    multiple=True,
    default=["cpu"],
    show_default=True,
    help="Device to export for; may be repeated. FP32 for the CPU is always made, as what others are judged by.",
)
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(["auto", "fp32", "fp16", "int8"]),
    multiple=True,
    default=["auto"],
    help="Variants to make; may be repeated. auto makes FP32 and INT8 for the CPU, where measurements choose the "
    "default, and FP16 for a GPU.",
)
@click.option("--max-tokens", type=int, help="Longest sequence; by default the most that the checkpoint allows.")
@click.option("--dimensions", type=int, help="Keep the first so many dimensions of embeddings (Matryoshka models).")
@click.option("--evaluate", type=PATH, help="Labelled file; its task metric decides whether INT8 may be the default.")
@click.option(
    "--calibrate",
    type=PATH,
    help="A few hundred typical inputs, without labels, to measure INT8's ranges on; by default built-in texts.",
)
@columns_option
@click.option(
    "--max-drop",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="PCT",
    help="Points (hundredths) of the task metric that INT8 may lose on the labelled file.",
)
@click.option(
    "--weight-bits",
    type=click.IntRange(7, 8),
    show_default="8, or 7 where layers share weights",
    help="Bits of INT8's weights; 7 is faster on processors without VNNI, and less exact everywhere.",
)
@click.option(
    "--padding",
    "paddings",
    multiple=True,
    type=click.Choice(PADDING_MODES),
    show_default="all",
    help="For CUDA, a padding mode; graphs share their weights. masked: any batch, always made; unmasked: "
    "large batches without padding; packed: large batches of mixed lengths. May be repeated.",
)
@task_options
@click.option("--opset", type=int, help="Version of ONNX's operators to write; by default the only one that works.")
@click.option("--force", is_flag=True, help="Replace an existing bundle.")
@json_option
def export(
    checkpoint: str,
    bundle: Path,
    task: str | None,
    devices: tuple[str, ...],
    precisions: tuple[str, ...],
    max_tokens: int | None,
    dimensions: int | None,
    evaluate: Path | None,
    calibrate: Path | None,
    columns: dict[str, str] | None,
    max_drop: float,
    weight_bits: int | None,
    paddings: tuple[str, ...],
    opset: int | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Export CHECKPOINT to BUNDLE: capture, fuse, quantize, verify.

    CHECKPOINT is a folder, or a model of the Hugging Face hub: org/name or org/name@revision. Options that tasks have,
    such as --top-k, become the bundle's defaults.
    """
    from bert_export import export as export_checkpoint

    manifest = export_checkpoint(
        checkpoint, bundle,
        task=task, targets=devices, precisions=None if "auto" in precisions else precisions, max_tokens=max_tokens,
        dimensions=dimensions, options=given(options), opset=opset,
        evaluate=evaluate, calibrate=calibrate, columns=columns, max_drop=max_drop, weight_bits=weight_bits,
        paddings=paddings or None, force=force, progress=progress_printer(),
    )  # fmt: skip
    if as_json:
        print_json(manifest.to_dict())
    else:
        click.echo(summary(bundle, manifest))
