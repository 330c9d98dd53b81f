"""Build the CPU variants of a bundle: FP32, the baseline of all others, and INT8."""

from typing import Any

import onnx_ir as ir

from bert_export.attention_graph import add_attention_outputs
from bert_export.capture import OPSET, capture
from bert_export.flops import int8_flops_share
from bert_export.fusion import FusionCounts, fuse
from bert_export.fusion.prune_tokens import prune_tokens
from bert_export.graph_files import save_graph, save_graphs
from bert_export.outline_kernels import lower_for_cpu
from bert_export.parity import check_parity
from bert_export.progress import throttled_steps
from bert_export.quantization import expected_projections, measure_activations, quantize
from bert_export.repetitive_texts import repetitive_batches
from bert_export.variants import (
    BuildContext,
    BuiltVariant,
    Fp32Variant,
    Probe,
    check_finite,
    finish_variant,
    measure_drift,
)

__all__ = ["build_fp32", "build_int8", "capture_fused"]

_INT8_SELF_TEST_SHARE = 0.25
"""Tolerance of INT8's self-test on another machine, as a share of the maximum drift from FP32. Float32 rounds
differently there before an activation is quantized, which moves the quantized value by one step at most. The share is a
judgement."""


def capture_fused(context: BuildContext) -> tuple[ir.Model, FusionCounts]:
    """Capture and fuse the model, with all tokens kept.

    Raises:
        FusionError: a fusion fired a different number of times than the model's configuration demands.
    """
    torch_model = context.torch_model
    context.progress("capturing the graph with torch.onnx")
    graph = capture(torch_model)
    context.progress("fusing")
    return graph, fuse(graph, torch_model.config, torch_model.task)


def build_fp32(context: BuildContext, graph: ir.Model, fusions: FusionCounts) -> Fp32Variant:
    """Prune tokens in a fused graph if the model does, write it, and compare it with PyTorch.

    Args:
        context: the export's context.
        graph: what `capture_fused` returned. It is changed.
        fusions: its counts.

    Raises:
        FusionError: tokens cannot be pruned where the schedule says.
        ParityError: the graph does not compute what the PyTorch model computes.
    """
    torch_model = context.torch_model
    if torch_model.config.token_pruning is not None:
        fusions = prune_tokens(graph, torch_model.config.token_pruning, fusions)
    lowered = lower_for_cpu(graph, fusions)
    graphs = {"fp32": lowered.graph}
    if context.attention:  # saved together, since they share one file of weights
        graphs["attention"] = add_attention_outputs(graph, torch_model.config)
    saved = save_graphs(graphs, context.folder)
    files = saved["fp32"]
    context.progress("comparing FP32 with PyTorch under every kind of padding")
    runtime_model = context.open_runtime_model(context.folder / files.model.file)
    parity = check_parity(torch_model, runtime_model.session.run, context.max_tokens)
    built = finish_variant(
        context, runtime_model, runtime_model.outputs(context.probe.texts), files, tolerance=parity["tolerance"],
        precision="fp32", target="cpu", opset=OPSET, fusions=lowered.fusions, functions=lowered.calls, parity=parity,
    )  # fmt: skip
    return Fp32Variant(built.variant, built.runtime_model, built.outputs, graph, fusions, saved.get("attention"))


def build_int8(context: BuildContext, fp32: Fp32Variant, weight_bits: int) -> BuiltVariant:
    """Quantize a copy of the fused FP32 graph, and measure its drift.

    Args:
        context: the export's context.
        fp32: the FP32 variant.
        weight_bits: 7 or 8, see `choose_weight_bits`.

    Raises:
        FusionError: the number of quantized projections is not what the model's configuration demands.
        ExportError: an output on the probe's texts is not finite.
    """
    probe, calibration = context.probe, context.probe.calibration
    added = f" and {len(calibration.built_in_inputs)} built-in ones" if calibration.built_in_inputs else ""
    context.progress(f"calibrating INT8 on {len(calibration.inputs)} inputs of {calibration.source}{added}")
    batches = calibration.batches(context.torch_model.task, probe.tokenizer)
    repetitive = repetitive_batches(context.torch_model.task, probe.tokenizer)
    on_batch = throttled_steps(context.progress, "calibrating INT8")
    activations = measure_activations(fp32.graph, batches, calibration.headroom, repetitive, on_batch)
    context.progress("quantizing to INT8")
    graph = fp32.graph.clone()
    expected = expected_projections(context.torch_model.config, fp32.fusions)
    on_weight = throttled_steps(context.progress, "quantizing to INT8")
    counts, recipe = quantize(graph, expected, activations, weight_bits=weight_bits, on_step=on_weight)
    lowered = lower_for_cpu(graph, fp32.fusions)
    files = save_graph(lowered.graph, context.folder, "int8")
    context.progress(f"measuring INT8 drift on {len(probe.texts)} texts")
    runtime_model = context.open_runtime_model(context.folder / files.model.file, int8=True)
    outputs = runtime_model.outputs(probe.texts)
    check_finite(outputs, "INT8")
    drift = measure_drift(runtime_model.task, outputs, fp32.outputs)
    return finish_variant(
        context, runtime_model, outputs, files,
        tolerance=max(1e-4, _INT8_SELF_TEST_SHARE * drift["max_abs_difference"]),
        precision="int8", target="cpu", opset=OPSET, instruction_set="vnni" if weight_bits == 8 else None,
        fusions={**lowered.fusions, **counts}, functions=lowered.calls,
        int8_flops_share=round(int8_flops_share(graph), 4), drift=drift,
        quantization=recipe | _quantization_inputs(probe, sum(int(batch.attention_mask.sum()) for batch in batches)),
    )  # fmt: skip


def _quantization_inputs(probe: Probe, num_tokens: int) -> dict[str, Any]:
    """Return what calibrated INT8 and what judged it, as the manifest states them."""
    warning = {} if probe.calibration_warning is None else {"warning": probe.calibration_warning}
    return {"calibration": probe.calibration.record(num_tokens) | warning, "judged_on": dict(probe.texts_record)}
