"""Run all fusions in order, count them, and compare the counts with what the model's configuration demands."""

from collections import Counter
from functools import partial

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import DeduplicateHashedInitializersPass

from bert_export.fusion.attention import fuse_attention
from bert_export.fusion.first_token_only import fuse_first_token_only
from bert_export.fusion.local_attention import find_local_attention
from bert_export.fusion.merge_gate import merge_gates
from bert_export.fusion.merge_qkv import merge_qkv
from bert_export.fusion.mlm_gather_masks import fuse_mlm_gather_masks
from bert_export.fusion.position_bias import fold_position_bias
from bert_export.fusion.position_scores import fuse_position_scores
from bert_export.fusion.vocabulary_pooling import fuse_vocabulary_pooling
from bert_export.onnx_graph import (
    FusionCounts,
    NoMatch,
    add_initializer,
    check_counts,
    constant,
    linears,
    operators,
    scope,
    tidy,
)
from bert_export.position_functions import POSITION_SCORES
from bert_models import EncoderConfig
from bert_models.first_token import reads_first_token_only
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN
from bert_runtime.tasks import FeatureExtraction, FillMask, SparseEmbedding, Task

__all__ = ["expected_fusions", "fuse"]


def expected_fusions(config: EncoderConfig, task: Task) -> dict[str, int]:
    """Return how often each fusion must fire for a model of this configuration with this task's head.

    The keys are those in bundles: `first_row` is `fuse_first_token_only`, `masked_rows` is `fuse_mlm_gather_masks`.
    """
    first_token = int(reads_first_token_only(config, task))
    return {
        "attention": config.num_layers,
        "first_row": first_token,
        "masked_rows": int(isinstance(task, FillMask)),
        "qkv_projection": config.num_layers - first_token,
        "kv_projection": first_token,
        "layer_normalization": 2 * config.num_layers + 1 - _without_final_norm(config, task),
        "gelu": config.num_layers if config.activation.startswith("gelu") else 0,
        **({"vocabulary_pooling": 1} if isinstance(task, SparseEmbedding) else {}),
        **({} if config.relative_buckets is None else {"position_bias": 1}),
        **({} if config.position_attention is None else {"position_scores": config.num_layers}),
        **({"rotary": 2 * config.num_layers} if config.positions == "rotary" else {}),
        **({"local_attention": len(config.local_layers)} if config.local_layers else {}),
        **({"gated_projection": config.num_layers} if config.gated_feed_forward else {}),
    }


def _without_final_norm(config: EncoderConfig, task: Task) -> int:
    """Return 1 where the encoder would end with a LayerNorm, and layers below that are read instead."""
    return int(config.norm_first and isinstance(task, FeatureExtraction) and task.depth < task.num_layers)


def fuse(graph: ir.Model, config: EncoderConfig, task: Task) -> FusionCounts:
    """Fuse the captured graph of a `TaskModel` in place.

    LayerNormalization with a plain Add before it and exact Gelu are what torch captures from opset 20 on, and what is
    fastest on the CPU, where SkipLayerNormalization and FastGelu are slower. These two are only counted.

    Args:
        graph: what `capture` returned.
        config: the model's configuration.
        task: the model's task.

    Returns:
        The expected and found number of each fusion.

    Raises:
        FusionError: a fusion fired a different number of times than `expected_fusions` demands; gives the reasons.
    """
    expected = expected_fusions(config, task)
    found: Counter[str] = Counter()
    reasons: list[str] = []
    for node in operators(graph, "Attention"):
        try:
            fuse_attention(node)
            found["attention"] += 1
        except NoMatch as reason:
            reasons.append(f"attention at {scope(node)}: {reason}")
    _add_norm_biases(graph)
    tidy(graph)
    if config.position_attention is not None:
        _fuse_position_scores(graph, found, reasons)
    found["rotary"] = len(operators(graph, "RotaryEmbedding"))
    found["local_attention"] = len(find_local_attention(graph))
    for name, rewrite in (
        ("position_bias", fold_position_bias),
        ("first_row", fuse_first_token_only),
        ("masked_rows", partial(_gather_masks, task=task)),
        ("vocabulary_pooling", partial(_pool_vocabulary, task=task)),
    ):
        if expected.get(name):
            try:
                rewrite(graph)
                found[name] += 1
            except NoMatch as reason:
                reasons.append(f"{name}: {reason}")
    for node in operators(graph, "Attention"):
        try:
            found[merge_qkv(node)] += 1
        except NoMatch as reason:
            reasons.append(f"projections at {scope(node)}: {reason}")
    found["gated_projection"] = merge_gates(graph, reasons)
    _name_weights(graph)
    DeduplicateHashedInitializersPass()(graph)  # layers that share parameters had them merged one by one
    tidy(graph)
    for name, op_type in (("layer_normalization", "LayerNormalization"), ("gelu", "Gelu")):
        found[name] = sum(scope(node).startswith("encoder") for node in operators(graph, op_type))
    return check_counts(found, expected, reasons)


def _fuse_position_scores(graph: ir.Model, found: Counter[str], reasons: list[str]) -> None:
    for node in operators(graph, "Attention"):
        try:
            fuse_position_scores(node)
            found["position_scores"] += 1
        except NoMatch as reason:
            reasons.append(f"position_scores at {scope(node)}: {reason}")
    graph.functions[POSITION_SCORES.identifier()] = POSITION_SCORES
    graph.graph.opset_imports[KERNEL_DOMAIN] = 1
    tidy(graph)


def _gather_masks(graph: ir.Model, task: Task) -> None:
    assert isinstance(task, FillMask)
    fuse_mlm_gather_masks(graph, task.mask_token_id)


def _add_norm_biases(graph: ir.Model) -> None:
    """Give every LayerNormalization a bias, which is zero where the model has none: what kernels expect."""
    for node in operators(graph, "LayerNormalization"):
        if len(node.inputs) == 2:
            zeros = add_initializer(graph.graph, f"{scope(node)}.bias", np.zeros_like(constant(node.inputs[1])))
            node.resize_inputs(3)
            node.replace_input_with(2, zeros)


def _name_weights(graph: ir.Model) -> None:
    """Name the weights that torch transposed, and left nameless, after their module."""
    for linear in linears(graph):
        name = f"{scope(linear.matmul)}.weight"
        if str(linear.weight.name).startswith("val_") and name not in graph.graph.initializers:
            linear.weight.name = name


def _pool_vocabulary(graph: ir.Model, task: Task) -> None:
    assert isinstance(task, SparseEmbedding)
    fuse_vocabulary_pooling(graph, task)
