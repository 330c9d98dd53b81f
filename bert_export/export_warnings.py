"""Warnings about the checkpoint and the data of an export, which goes on nevertheless."""

from collections.abc import Iterator

from bert_export.embedding_settings import has_pooling
from bert_export.labelled_data import LabelledData
from bert_export.targets import VariantPlan
from bert_export.variants import Probe
from bert_models import Checkpoint
from bert_runtime.tasks import SentenceEmbedding, Task

__all__ = ["export_warnings"]

_FEW_EXAMPLES = 100
"""Labelled examples below which INT8 is hardly judged: of fewer, one is over a percent. A judgement."""


def export_warnings(
    source: Checkpoint,
    task: Task,
    plan: VariantPlan,
    probe: Probe,
    labelled: LabelledData | None,
    *,
    assumes_pooling: bool,
) -> Iterator[str]:
    """Yield warnings about the checkpoint and the data.

    Args:
        source: the checkpoint.
        task: the task that it is exported for.
        plan: the variants to make.
        probe: the inputs that INT8 is calibrated on and judged by.
        labelled: the data of `evaluate`.
        assumes_pooling: whether no pooling was asked for.
    """
    if isinstance(task, SentenceEmbedding) and assumes_pooling and not has_pooling(source):
        yield (
            f"{source.path}: no modules.json says how tokens are pooled, {task.pooling} pooling is assumed; name it "
            "with --pooling, or if the files come from a cache that has only some of them, download the others"
        )
    if "int8" not in plan.cpu:
        return
    if probe.calibration_warning is not None:
        yield probe.calibration_warning
    if labelled is not None and (found := labelled.num_examples) < _FEW_EXAMPLES:
        yield f"{labelled.name}: {found} examples tell little of what INT8 loses; give {_FEW_EXAMPLES} or more"
