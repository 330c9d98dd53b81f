"""Labels that dev rows have and that the model cannot have learned, because no training row has them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from bert_models.training.infer_task import labels_without_example, task_label_reader
from bert_runtime.records import Record
from bert_runtime.tasks import Task

__all__ = ["DevRows", "check_dev_labels"]


class DevRows(NamedTuple):
    """The dev rows that are scored, and what is said of labels that only dev rows have."""

    records: list[Record]
    warning: str | None
    report: dict[str, Any] | None
    """`policy`, rows by label, the rows concerned, and all dev rows; `None` if there is no such label."""


def check_dev_labels(task: Task, train: Sequence[Record], dev: Sequence[Record], policy: str, dev_name: str) -> DevRows:
    """Leave dev rows out whose labels the task lacks if the policy is `skip`; find those with unlearned ones if `keep`.

    Args:
        task: the task, with its labels.
        train: rows of the training file.
        dev: rows of the dev file.
        policy: one of `settings.UNKNOWN_LABELS`.
        dev_name: the dev file in messages.

    Raises:
        DataError: a row's labels cannot be read.
    """
    read = task_label_reader(task)
    if read is None or policy == "error":
        return DevRows(list(dev), None, None)
    unlearned = set(labels_without_example(task, train)) if policy == "keep" else set()
    known = {*getattr(task, "labels", ())} - unlearned
    unknown = [set(read(record)) - known for record in dev]
    if not any(unknown):
        return DevRows(list(dev), None, None)
    rows = Counter(label for labels in unknown for label in labels)
    concerned = sum(map(bool, unknown))
    listed = ", ".join(f"{label!r} ({count})" for label, count in sorted(rows.items()))
    if policy == "skip":
        kept = [record for record, labels in zip(dev, unknown, strict=True) if not labels]
        action = "they are not scored; --unknown-labels keep scores them, as labels that the model has never seen"
    else:
        kept = list(dev)
        action = "they are scored, as labels that the model has never seen"
    warning = (
        f"warning: {dev_name}: {concerned} of {len(dev)} rows have labels that nothing was learned of: {listed}; "
        f"{action}"
    )
    report = {"policy": policy, "labels": dict(sorted(rows.items())), "rows": concerned, "of": len(dev)}
    return DevRows(kept, warning, report)
