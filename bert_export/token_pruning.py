"""Token pruning in an export: compare it with all tokens kept, and choose a schedule by that comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import onnx_ir as ir

from bert_export.errors import ExportError
from bert_export.fusion import FusionCounts
from bert_export.fusion.prune_tokens import prune_tokens
from bert_export.labelled_data import LabelledData, LabelledFile
from bert_export.outline_kernels import lower_for_cpu
from bert_export.paired_bootstrap import is_within, paired_drop
from bert_export.temporary_session import temporary_graph
from bert_export.variants import BuildContext, check_drift, measure_drift
from bert_models import EncoderConfig
from bert_models.first_token import check_prunable
from bert_models.pruned_checkpoint import set_token_pruning
from bert_models.pruning_schedule import MIN_KEPT_TOKENS, TokenPruning
from bert_runtime.tasks import Outputs, Task

__all__ = [
    "AUTO",
    "candidate_schedules",
    "check_pruning",
    "choose_schedule",
    "graph_outputs",
    "measure_pruning",
]

AUTO = "auto"
"""Schedule that is chosen on the texts that judge the variants."""

_SHARES = (80, 70, 60, 50, 40, 30)
"""Percentages that stay after a third of the layers; after two thirds, their squares. A judgement."""


class _Compared(NamedTuple):
    """A pruned model compared with the same model that keeps all tokens, both in FP32."""

    drift: Mapping[str, float]
    metrics: Mapping[str, Any]
    """Task metric of both models on the labelled data; empty without any."""


def candidate_schedules(num_layers: int) -> list[TokenPruning]:
    """Return the schedules that `AUTO` chooses from, the one that keeps most first."""
    return [TokenPruning.in_thirds(num_layers, share) for share in _SHARES]


def check_pruning(config: EncoderConfig, task: Task, schedule: str | None, *, attention: bool) -> EncoderConfig:
    """Check that tokens may be pruned, before anything takes time.

    Args:
        config: the encoder's configuration, with a schedule unless that is to be chosen.
        task: the task.
        schedule: what the export was asked for.
        attention: whether a graph with attention probabilities was asked for.

    Returns:
        The configuration, with one of the schedules if one is to be chosen: what else must be possible with it.

    Raises:
        ConfigError: the task reads all tokens, or the encoder cannot prune.
        ExportError: the schedule is to be chosen for a model of one layer, or attention probabilities were asked for.
    """
    if schedule == AUTO:
        if config.num_layers < 2:
            raise ExportError("expected a model of at least 2 layers to prune tokens between, found one layer")
        config = replace(config, token_pruning=candidate_schedules(config.num_layers)[0])
    check_prunable(config, task)
    if attention and config.token_pruning is not None:
        raise ExportError(
            "attention probabilities are for models that keep all tokens; export without attention, or with "
            "prune_tokens none"
        )
    return config


def choose_schedule(
    context: BuildContext, graph: ir.Model, fusions: FusionCounts, labelled: LabelledData | None, max_drop: float
) -> TokenPruning:
    """Choose the schedule that keeps least and changes no more than INT8 may, and set it in the context's model.

    It must agree with all tokens kept as `Task.agreement_floor` demands and, with labelled data, lose at most
    `max_drop` points of the metric. Found by bisection: more tokens are taken to lose less.

    Raises:
        ExportError: None does.
    """
    whole = graph_outputs(context, graph, fusions)
    task = context.torch_model.runtime_task()
    candidates = candidate_schedules(context.torch_model.config.num_layers)
    low, high, evidence = -1, len(candidates), ""
    while high - low > 1:
        middle = (low + high) // 2
        context.progress(f"trying token pruning {candidates[middle]}")
        pruned = graph.clone()
        counts = prune_tokens(pruned, candidates[middle], fusions)
        compared = _compare(task, graph_outputs(context, pruned, counts), whole, labelled)
        passed, evidence = _judge(task, compared, max_drop)
        low, high = (middle, high) if passed else (low, middle)
    if low < 0:
        raise ExportError(
            f"no schedule of token pruning is close enough to the model with all tokens ({candidates[0]}: {evidence}); "
            "train the model with one: bert-export train --prune-tokens"
        )
    set_token_pruning(context.torch_model, candidates[low])
    return candidates[low]


def graph_outputs(context: BuildContext, graph: ir.Model, fusions: FusionCounts) -> list[Outputs]:
    """Return the outputs of a fused FP32 graph on the probe's texts."""
    with temporary_graph(lower_for_cpu(graph, fusions).graph) as path:
        return context.open_runtime_model(path).outputs(context.probe.texts)


def measure_pruning(
    context: BuildContext, pruned: Sequence[Outputs], whole: Sequence[Outputs], labelled: LabelledData | None
) -> dict[str, Any]:
    """Return the manifest's entry: the schedule, and how the FP32 graph differs from the one that keeps all tokens.

    Args:
        context: the export's context, whose model has the schedule.
        pruned: the outputs on the probe's texts.
        whole: those of the same model with all tokens.
        labelled: the labelled data whose inputs the probe's texts are, if there are any.

    Raises:
        ExportError: the difference is not defined, see `check_drift`.
    """
    compared = _compare(context.torch_model.runtime_task(), pruned, whole, labelled)
    check_drift(compared.drift)
    return {
        "schedule": str(context.torch_model.config.token_pruning),
        "min_tokens": MIN_KEPT_TOKENS,
        "drift": dict(compared.drift),
        **({"metrics": dict(compared.metrics)} if compared.metrics else {}),
        "judged_on": dict(context.probe.texts_record),
    }


def _compare(
    task: Task, pruned: Sequence[Outputs], whole: Sequence[Outputs], labelled: LabelledData | None
) -> _Compared:
    drift = measure_drift(task, pruned, whole)
    if labelled is None:
        return _Compared(drift, {})
    found, expected = (labelled.score(task, outputs) for outputs in (pruned, whole))
    metric = task.deciding_metric(found)
    metrics: dict[str, Any] = {"metric": metric, "pruned": found[metric], "all_tokens": expected[metric]}
    if isinstance(labelled, LabelledFile):
        drop = paired_drop(task, pruned, task, whole, labelled.examples)
        if drop.reference > 0:  # of nothing, nothing can be lost
            metrics["drop_percent"] = drop.drop_percent
            metrics["drop_percent_interval"] = [*asdict(drop.drop_interval).values()]
    return _Compared(drift, metrics)


def _judge(task: Task, compared: _Compared, max_drop: float) -> tuple[bool, str]:
    """Return whether a schedule changes little enough, and the evidence in words."""
    key, floor = task.agreement_floor
    passed, evidence = compared.drift[key] >= floor, f"{key} {compared.drift[key]:.4f} where {floor} is asked"
    if compared.metrics:
        drop = 100 * (compared.metrics["all_tokens"] - compared.metrics["pruned"])
        passed = passed and is_within(drop, max_drop)
        evidence += f", {drop:.2f} points less {compared.metrics['metric']} where {max_drop:g} may be lost"
    return passed, evidence
