"""`bert-export export`."""

from pathlib import Path
from typing import Any

import click

from bert_export.cli.bundle_summary import print_export
from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import (
    bundle_argument,
    check_columns_usage,
    columns_option,
    drop_unset,
    force_option,
    input_option,
    json_option,
    task_options,
)
from bert_export.cli.output import predict_arguments, print_json, print_next
from bert_export.cli.param_types import CHECKPOINT, PATH
from bert_export.cli.progress import stage_progress
from bert_export.errors import ExportError
from bert_export.layer_selection import check_layers
from bert_export.targets import PRECISIONS_BY_TARGET
from bert_runtime.bundle.manifest import PADDING_MODES, PRECISIONS
from bert_runtime.tasks import TASKS
from bert_runtime.tasks.feature_extraction import LAYER_COMBINATIONS
from bert_runtime.tasks.sentence_embedding import PARAMETER_FREE_POOLINGS

__all__ = ["export"]


_STAGES_S = {
    "reading the checkpoint": 1.0,
    "capturing": 4.5,
    "fusing": 0.3,
    "comparing": 0.8,
    "calibrating INT8": 6.8,
    "quantizing to INT8": 5.8,
    "measuring INT8": 0.2,
    "converting to bf16": 0.3,
    "measuring bf16": 0.3,
    "timing": 1.4,
    "verifying": 1.0,
}
"""Stages of an export for the CPU, and the seconds that each took for MiniLM-L6 on two cores (`make demo`)."""

model_option = option_group("Model")
variants_option = option_group("Variants")


def _check_layers(context: click.Context, parameter: click.Parameter, layers: str | None) -> str | None:
    if layers is not None:
        try:
            check_layers(layers)
        except ExportError as error:
            raise click.BadParameter(str(error)) from None
    return layers


@click.command(
    cls=ExampleCommand,
    short_help="Export CHECKPOINT: capture, fuse, quantize, verify.",
    examples=[
        "bert-export export all-MiniLM-L6-v2 bundle",
        "# INT8 only if it costs at most half a point on a labelled file",
        "bert-export export checkpoint bundle --calibrate train.csv \\",
        "    --evaluate dev.csv --max-drop 0.5",
        "# FP16 for a GPU, from the Hugging Face hub",
        "bert-export export org/name@v2 bundle --target cuda",
    ],
)
@click.argument("checkpoint", type=CHECKPOINT)
@bundle_argument
@model_option("--task", type=click.Choice(list(TASKS)), help="Task of the model, if the checkpoint does not say.")
@variants_option(
    "--target",
    "targets",
    type=click.Choice(list(PRECISIONS_BY_TARGET)),
    multiple=True,
    default=["cpu"],
    show_default=True,
    help="Device to export for; repeatable. FP32 for the CPU is always included, as the reference for the others.",
)
@variants_option(
    "--precision",
    "precisions",
    type=click.Choice(["auto", *PRECISIONS]),
    multiple=True,
    default=["auto"],
    show_default=True,
    help="Variants to export; repeatable. auto: FP32 and INT8 for the CPU, where measurements select the default, and "
    "FP16 for a GPU. bf16: for a CPU with AVX512-BF16 or arm64's BF16, between FP32 and INT8 in speed and in accuracy.",
)
@model_option(
    "--max-tokens",
    type=click.IntRange(min=3),
    show_default="the checkpoint's maximum",
    help="Maximum tokens of an input sequence.",
)
@model_option(
    "--pooling",
    type=click.Choice(PARAMETER_FREE_POOLINGS),
    show_default="what modules.json says, else mean",
    help="sentence-embedding: how token vectors are pooled, for a checkpoint without modules.json.",
)
@model_option("--dimensions", type=int, help="Keep only the first dimensions of embeddings (Matryoshka models).")
@model_option(
    "--layers",
    metavar="LAYERS",
    callback=_check_layers,
    show_default="-1, the last",
    help="feature-extraction: hidden states to read: numbers, and ranges with both ends included, such as -4:-1 for "
    "the last four layers; 0 is the embeddings. Layers above the highest one are left out.",
)
@model_option(
    "--layer-combination",
    type=click.Choice(LAYER_COMBINATIONS),
    show_default="concat",
    help="feature-extraction: how several hidden states become one vector per token: side by side (concat), mean, sum.",
)
@model_option(
    "--layer-norm",
    is_flag=True,
    help="Normalize embeddings by mean and variance, before --dimensions and the length: for nomic-embed-text-v1.5.",
)
@input_option(
    "--evaluate",
    type=PATH,
    help="Labelled file, or for sentence-embedding a folder in BEIR's format. Its task metric or nDCG@10, and "
    "agreement with FP32, decide whether INT8 may be the default variant.",
)
@input_option(
    "--calibrate",
    type=PATH,
    show_default="built-in texts",
    help="A few hundred typical inputs, without labels, to calibrate INT8's ranges on; up to 300 are used. Without "
    "--evaluate, a third of them is held out to judge INT8 by. To fewer than 200, built-in texts are added.",
)
@columns_option
@variants_option(
    "--max-drop",
    type=click.FloatRange(min=0),
    show_default="1",
    metavar="POINTS",
    help="Maximum loss of INT8 on the data of --evaluate, in percentage points of the metric.",
)
@variants_option(
    "--weight-bits",
    type=click.IntRange(7, 8),
    show_default="8; 7 if layers share weights",
    help="Bits of INT8's weights. 7 is faster on processors without VNNI, and less accurate everywhere.",
)
@variants_option(
    "--padding",
    "paddings",
    multiple=True,
    type=click.Choice(PADDING_MODES),
    show_default="all",
    help="CUDA: padding mode of the graphs, which share their weights; repeatable. masked: any batch (always "
    "included); unmasked: large batches without padding; packed: large batches of mixed lengths.",
)
@variants_option(
    "--attention",
    is_flag=True,
    help="Add a graph that also gives attention probabilities, for the command attention. It shares FP32's weights.",
)
@model_option(
    "--prune-tokens",
    metavar="SCHEDULE",
    show_default="the checkpoint's",
    help="Drop tokens of low importance between layers: layer:share, such as 2:0.5,4:0.25 to keep half of a text's "
    "tokens from layer 2 on and a quarter from 4 on; auto: choose on the data of --evaluate or --calibrate; none. For "
    "tasks that read the first token alone, such as text-classification.",
)
@task_options
@variants_option("--opset", type=int, help="ONNX opset version; only the default is supported.")
@force_option
@json_option
def export(
    checkpoint: str,
    bundle: Path,
    task: str | None,
    targets: tuple[str, ...],
    precisions: tuple[str, ...],
    max_tokens: int | None,
    dimensions: int | None,
    layers: str | None,
    layer_combination: str | None,
    layer_norm: bool,
    pooling: str | None,
    evaluate: Path | None,
    calibrate: Path | None,
    columns: dict[str, str] | None,
    max_drop: float | None,
    weight_bits: int | None,
    paddings: tuple[str, ...],
    attention: bool,
    prune_tokens: str | None,
    opset: int | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Export CHECKPOINT to BUNDLE: capture, fuse, quantize, verify.

    CHECKPOINT is a folder, or a model on the Hugging Face hub: org/name or org/name@revision. Options of tasks, such as
    --top-k, become the bundle's defaults.
    """
    from bert_export import export as export_checkpoint

    if "auto" in precisions and len(set(precisions)) > 1:
        others = " ".join(f"--precision {name}" for name in precisions)
        raise click.UsageError(f"--precision auto chooses by itself: name all precisions, or only auto; found {others}")
    if max_drop is None:
        max_drop = 1.0
    elif evaluate is None:
        raise click.UsageError("--max-drop limits the loss on labelled data: give these with --evaluate")
    check_columns_usage(columns, evaluate=evaluate, calibrate=calibrate)
    if weight_bits is not None and ("cpu" not in targets or {"auto", "int8"}.isdisjoint(precisions)):
        raise click.UsageError("--weight-bits are those of INT8 for the CPU: add --target cpu and --precision int8")
    if opset is not None:
        _check_opset(opset)
    with stage_progress(_expected_stages(targets, precisions)) as progress:
        manifest = export_checkpoint(
            checkpoint, bundle,
            task=task, targets=targets, precisions=None if "auto" in precisions else precisions, max_tokens=max_tokens,
            pooling=pooling, dimensions=dimensions, layer_norm=layer_norm, layers=layers,
            layer_combination=layer_combination, options=drop_unset(options), opset=opset,
            evaluate=evaluate, calibrate=calibrate, columns=columns,
            max_drop=max_drop, weight_bits=weight_bits, paddings=paddings or None, prune_tokens=prune_tokens,
            attention=attention, force=force, progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(manifest.to_dict())
    else:
        print_export(bundle, manifest)
    print_next("bert-export", "predict", bundle, *predict_arguments(manifest.task))
    print_next("bert-export", "tune", bundle, why="on the machine that will serve it")


def _check_opset(opset: int) -> None:
    """Raise `click.UsageError` for an opset that no graph can be written in, with the reason."""
    from bert_export.capture import check_opset

    try:
        check_opset(opset)
    except ExportError as error:
        raise click.UsageError(f"--opset: {error}") from None


def _expected_stages(targets: tuple[str, ...], precisions: tuple[str, ...]) -> dict[str, float]:
    """Return the stages of an export with the seconds that they may take; none for GPUs, which were not measured."""
    if targets != ("cpu",):
        return {}
    left_out = ["INT8"] * {"auto", "int8"}.isdisjoint(precisions) + ["bf16"] * ("bf16" not in precisions)
    return {stage: seconds for stage, seconds in _STAGES_S.items() if not any(name in stage for name in left_out)}
