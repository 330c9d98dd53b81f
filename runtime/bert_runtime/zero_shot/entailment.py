"""Find the labels of a classifier of pairs for entailment of the second text by the first, and for contradiction."""

import logging
from typing import NamedTuple

from bert_runtime.errors import InputError
from bert_runtime.tasks import Task, TextClassification

__all__ = ["EntailmentLabels"]

_log = logging.getLogger("bert_runtime")


class EntailmentLabels(NamedTuple):
    """Indices of a model's labels."""

    entailment: int
    contradiction: int
    """The label that entailment is compared with: also `not_entailment` of a model of two labels."""

    @classmethod
    def of(cls, task: Task) -> "EntailmentLabels":
        """Find the labels as the pipeline of transformers does, whose scores are to be equal.

        Entailment is the first label whose name begins with `entail`, in upper or lower case. The other one is the
        first label, or the last one if entailment is the first.

        Raises:
            InputError: the task is no classification by one label, or none of its labels is entailment.
        """
        if not isinstance(task, TextClassification):
            raise InputError(
                "zero-shot classification needs a text-classification model of natural language inference, found one "
                f"for {task.name}"
            )
        if task.problem_type != "single_label":
            raise InputError(
                "zero-shot classification needs a model that gives a pair one of several labels, found one whose "
                f"problem type is {task.problem_type}"
            )
        names = [label.lower() for label in task.labels]
        entailment = next((index for index, name in enumerate(names) if name.startswith("entail")), None)
        if entailment is None:
            shown = ", ".join(task.labels[:10]) + (", …" if len(task.labels) > 10 else "")
            raise InputError(
                "zero-shot classification needs a model of natural language inference, with a label whose name begins "
                f"with 'entail'; found {shown}. If the model is one, name its labels in id2label of the checkpoint's "
                "config.json, and export it again"
            )
        contradiction = len(names) - 1 if entailment == 0 else 0
        if not names[contradiction].startswith("contradict") and any(name.startswith("contradict") for name in names):
            _log.warning(
                "entailment is compared with the label %r, as the pipeline of transformers does, although another is "
                "named contradiction; this changes the scores of several labels per text",
                task.labels[contradiction],
            )
        return cls(entailment, contradiction)
