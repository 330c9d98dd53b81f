"""Export a checkpoint to a bundle: capture, fuse, quantize, verify, write."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from bert_export.attention_graph import build_attention_graph
from bert_export.bf16 import build_bf16
from bert_export.capture import OPSET, check_opset, input_names
from bert_export.compression_summary import PRUNING_KEY
from bert_export.cpu import build_fp32, build_int8, capture_fused
from bert_export.cuda import build_cuda
from bert_export.default_precision import DefaultPrecision, choose_default_precision, with_metrics
from bert_export.embedding_ranges import with_embedding_ranges
from bert_export.embedding_settings import with_embedding_settings
from bert_export.errors import ExportError
from bert_export.export_warnings import export_warnings
from bert_export.graph_files import asset
from bert_export.labelled_data import LabelledData, read_labelled
from bert_export.latency import median_latencies_ms
from bert_export.layer_selection import layers_option, with_layers
from bert_export.model_card import export_command, model_card
from bert_export.output_files import check_bundle_output
from bert_export.probe import check_drift_inputs, make_probe
from bert_export.quantization import choose_weight_bits
from bert_export.source_card import read_source_card
from bert_export.targets import ONLY_FP32, WHY_FP16, VariantPlan, check_gpu_targets, plan_paddings, plan_variants
from bert_export.tensorrt import build_tensorrt
from bert_export.token_pruning import AUTO, check_pruning, choose_schedule, graph_outputs, measure_pruning
from bert_export.variants import BuildContext, BuiltVariant
from bert_models import Checkpoint, load_model, open_checkpoint
from bert_models.pruned_checkpoint import with_token_pruning
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.bundle.contents import CARD_NAME, replacement_problem
from bert_runtime.bundle.manifest import MANIFEST_NAME, AttentionGraph, Manifest, TensorSpec
from bert_runtime.cpu.native_kernels import native_kernels_record
from bert_runtime.machine import describe, installed_versions
from bert_runtime.tasks import TASKS
from bert_runtime.verification import failed_checks, verify

__all__ = ["export"]

_TOOLS = (
    "bert-export",
    "torch",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "tokenizers",
    "numpy",
)


def export(
    checkpoint: str | Path,
    bundle: str | Path,
    *,
    task: str | None = None,
    targets: Sequence[str] = ("cpu",),
    precisions: Sequence[str] | None = None,
    max_tokens: int | None = None,
    pooling: str | None = None,
    dimensions: int | None = None,
    layers: str | int | Sequence[int] | None = None,
    layer_combination: str | None = None,
    layer_norm: bool = False,
    options: Mapping[str, Any] | None = None,
    opset: int | None = None,
    evaluate: str | Path | None = None,
    calibrate: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    max_drop: float = 1.0,
    weight_bits: int | None = None,
    paddings: Sequence[str] | None = None,
    prune_tokens: str | None = None,
    attention: bool = False,
    force: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> Manifest:
    """Export a checkpoint to a bundle for the CPU, CUDA or TensorRT.

    Args:
        checkpoint: directory in the Hugging Face layout, or a hub id, see `bert_models.hub`.
        bundle: directory to write; it appears whole when every check has passed, or not at all.
        task: task, if the checkpoint does not say.
        targets: devices to export for: `cpu`, `cuda`, `tensorrt`. No GPU is needed.
        precisions: variants to make: `fp32`, `fp16`, `int8`, `bf16`. FP32 for the CPU is always made, since the others
            are compared with it. By default also INT8 for the CPU, and FP16 for a GPU.
        max_tokens: maximum length of a sequence in tokens; by default the checkpoint's.
        pooling: how an embedding is pooled, `cls`, `mean`, `max` …, if the checkpoint does not say (`modules.json`);
            by default `mean`.
        dimensions: number of an embedding's first dimensions to keep, before it is normalized (Matryoshka models).
        layers: hidden states that feature-extraction reads, see `select_layers`; by default the last one.
        layer_combination: how several of them become one vector, one of `LAYER_COMBINATIONS`; by default `concat`.
        layer_norm: normalize the whole embedding by its mean and variance, before `dimensions` are kept and the length
            becomes 1. The recipe of nomic-embed-text-v1.5 for fewer dimensions, which its files do not state.
        options: decoding options that become the bundle's defaults, see `Task.options`.
        opset: ONNX opset; only `OPSET` works, others are refused with the reason.
        evaluate: labelled file, or for sentence-embedding also a folder with a retrieval data set in BEIR's format; the
            task metric, or nDCG@10, and the agreement with FP32 on it decide whether INT8 may be the default.
        calibrate: file of typical inputs, without labels, to measure the ranges of INT8 on; by default built-in
            texts, which serve less well. Up to 300 inputs are used, evenly spread. Without `evaluate`, INT8 is
            calibrated on two thirds of them and judged on the others. To fewer than 200, built-in texts are added.
        columns: column names by field in `evaluate` and `calibrate`, see `bert_runtime.records.read_records`.
        max_drop: points (hundredths) of the task metric that INT8 may lose on `evaluate`.
        weight_bits: bits of INT8's weights: 8, or 7, which is faster on processors without VNNI and less exact on all.
            By default 8, or 7 where layers share their weights, see `choose_weight_bits`.
        paddings: padding modes of each CUDA graph, see `Variant.padding`: `masked`, which is always made, `unmasked`
            for large batches without padding, `packed` for large batches of mixed lengths; by default all.
        prune_tokens: schedule of token pruning, such as `2:0.5,4:0.25`, see `TokenPruning`; `auto` to choose one that
            changes no more than INT8 may, on the data of `evaluate` or on inputs that are held out from `calibrate`;
            `none`. By default the checkpoint's own.
        attention: add a graph that also gives attention probabilities, see `bert_runtime.load_attention`. It shares
            the weights of FP32.
        force: replace an existing bundle.
        progress: called with a line at the start of each stage.

    Returns:
        The bundle's manifest.

    Raises:
        ExportError: the checkpoint cannot be exported as asked. Subclasses: `FusionError`, `ParityError`, and
            `OutputExistsError` where `bundle` exists already.
        BertError: the checkpoint or a file cannot be read.
    """
    output = Path(bundle)
    command = export_command(
        checkpoint, output, columns, options,
        task=task, target=targets, precision=precisions, max_tokens=max_tokens, pooling=pooling,
        dimensions=dimensions, layers=layers_option(layers), layer_combination=layer_combination,
        evaluate=evaluate, calibrate=calibrate, max_drop=max_drop if evaluate else None, weight_bits=weight_bits,
        padding=paddings, prune_tokens=prune_tokens, attention=attention or None, layer_norm=layer_norm or None,
    )  # fmt: skip
    check_opset(OPSET if opset is None else opset)
    plan = plan_variants(targets, precisions)
    padding_modes = plan_paddings(paddings, plan)
    check_bundle_output(output, force=force)
    progress("reading the checkpoint")
    source = with_token_pruning(open_checkpoint(checkpoint), None if prune_tokens == AUTO else prune_tokens)
    weight_bits = choose_weight_bits(source.config, weight_bits)
    if task is not None and task in TASKS:
        source.check_trained_head(task)  # before anything that the task needs is found missing
    source_task = with_embedding_settings(source.task(task), source, pooling, dimensions, layer_norm=layer_norm)
    source_task = with_layers(source_task, layers, layer_combination).with_options(**(options or {}))
    config = check_pruning(source.config, source_task, prune_tokens, attention=attention)
    check_gpu_targets(plan, config)
    tokenizer = source.text_tokenizer(max_tokens, source_task.windows)
    labelled = read_labelled(evaluate, columns, source_task, tokenizer)
    probe = make_probe(source_task, tokenizer, labelled, calibrate, columns)
    if plan != ONLY_FP32 or config.token_pruning is not None:
        check_drift_inputs(source_task, probe)
    for warning in export_warnings(source, source_task, plan, probe, labelled, assumes_pooling=pooling is None):
        progress(f"warning: {warning}")
    torch_model = load_model(source, source_task)
    with atomic_replace_dir(output, partial(replacement_problem, output, force=force)) as folder:
        context = BuildContext(
            torch_model=torch_model, probe=probe, folder=folder, progress=progress, attention=attention
        )
        graph, fusions = capture_fused(context)
        if prune_tokens == AUTO:
            choose_schedule(context, graph, fusions, labelled, max_drop)
        whole = None if torch_model.config.token_pruning is None else graph_outputs(context, graph, fusions)
        fp32 = build_fp32(context, graph, fusions)
        if labelled is not None:  # now: where the metric is undefined, the rest is of no use
            (fp32,) = with_metrics(torch_model.runtime_task(), [fp32], labelled)
        pruning = None if whole is None else measure_pruning(context, fp32.outputs, whole, labelled)
        built: list[BuiltVariant] = [fp32]
        if "int8" in plan.cpu:
            built.append(build_int8(context, fp32, weight_bits))
        if "bf16" in plan.cpu:
            built.append(build_bf16(context, fp32))
        built += build_cuda(context, fp32, plan.cuda, padding_modes)
        built += build_tensorrt(context, fp32, plan.tensorrt, allow_fp32_fallback=precisions is None)
        built = _measure(context, built, labelled)
        default = _choose_default(context, built, plan, max_drop)
        built = _mark_faithful(built, default)
        (graph_output,) = fp32.graph.graph.outputs
        attention_graph = build_attention_graph(context, fp32)
        manifest = _write_manifest(context, source, built, default, graph_output, attention_graph, pruning)
        labelled_name = labelled.name if labelled is not None else None
        card = model_card(manifest, read_source_card(source), command, output.name, labelled_name)
        (folder / CARD_NAME).write_text(card, encoding="utf-8")
        _verify(context)
    return manifest


def _measure(context: BuildContext, built: Sequence[BuiltVariant], labelled: LabelledData | None) -> list[BuiltVariant]:
    """Add the task metrics on the labelled file, which FP32 has already, and the latencies of the CPU variants."""
    task = context.torch_model.runtime_task()
    if labelled is not None:
        built = [built[0], *with_metrics(task, built[1:], labelled)]
    context.progress("timing the variants")
    on_cpu = {item.variant.precision: item for item in built if item.variant.target == "cpu"}
    runs = {precision: item.runtime_model.session.run for precision, item in on_cpu.items()}
    latencies = median_latencies_ms(runs, task, context.max_tokens)
    return [
        item.with_measurements(latency_ms=latencies[item.variant.precision]) if item.variant.target == "cpu" else item
        for item in built
    ]


def _choose_default(
    context: BuildContext, built: Sequence[BuiltVariant], plan: VariantPlan, max_drop: float
) -> DefaultPrecision:
    """Choose the default precision among the CPU variants."""
    on_cpu = [item for item in built if item.variant.target == "cpu"]
    default = choose_default_precision(context.torch_model.runtime_task(), on_cpu, max_drop)
    if plan.cuda or plan.tensorrt:
        default = default._replace(reason=f"{default.reason}; {WHY_FP16}")
    return default


def _mark_faithful(built: Sequence[BuiltVariant], default: DefaultPrecision) -> list[BuiltVariant]:
    """Mark the CPU variants that are accurate enough to be the default."""
    return [
        item.with_measurements(faithful=item.variant.target == "cpu" and item.variant.precision in default.faithful)
        for item in built
    ]


def _axes(shape: ir.Shape | None) -> tuple[str | int, ...]:
    """Return a graph output's axes as the manifest lists them."""
    return tuple(axis if isinstance(axis, int) else str(axis.value) for axis in shape or ())


def _write_manifest(
    context: BuildContext,
    source: Checkpoint,
    built: Sequence[BuiltVariant],
    default: DefaultPrecision,
    graph_output: ir.Value,
    attention: AttentionGraph | None,
    pruning: Mapping[str, Any] | None,
) -> Manifest:
    """Write the tokenizer and the manifest."""
    probe, config = context.probe, source.config
    task = with_embedding_ranges(context.torch_model.runtime_task(), built[0].runtime_model, probe)
    tokenizer_path = context.folder / "tokenizer.json"
    probe.tokenizer.save(tokenizer_path)
    axes = ("batch", "sequence")
    maxima = {"input_ids": config.vocab_size, "attention_mask": 2, "token_type_ids": config.type_vocab_size}
    manifest = Manifest(
        task=task,
        max_tokens=context.max_tokens,
        pad_token_id=probe.tokenizer.pad_token_id,
        tokenizer=asset(tokenizer_path),
        inputs=tuple(
            TensorSpec(name=name, dtype="int64", axes=axes, exclusive_max=maxima[name]) for name in input_names(config)
        ),
        output=TensorSpec(name=task.output, dtype="float32", axes=_axes(graph_output.shape)),
        variants=tuple(item.variant for item in built),
        default_precision=default.precision,
        default_reason=default.reason,
        attention=attention,
        self_test_inputs=tuple(item.text if item.text_pair is None else item for item in probe.self_test_inputs),
        source={
            "path": source.name,
            **({"revision": source.revision} if source.revision else {}),
            "family": source.family.name,
            "sha256": source.sha256(),
        },
        versions=installed_versions(_TOOLS),
        machine=describe(),
        extra={
            "native_kernels": native_kernels_record(),
            "model_card": CARD_NAME,
            **({} if pruning is None else {PRUNING_KEY: pruning}),
        },
    )
    (context.folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def _verify(context: BuildContext) -> None:
    """Load the finished bundle with the runtime and repeat its self-tests."""
    context.progress("verifying the bundle with the runtime")
    if failed := failed_checks(verify(context.folder)):
        raise ExportError(f"the finished bundle fails its own verification: {'; '.join(failed)}")
