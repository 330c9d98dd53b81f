"""Results of a cascade: those of text-classification, with the model that answered."""

from dataclasses import dataclass
from typing import Any

from bert_runtime.tasks import Result
from bert_runtime.tasks.label_results import Classification, MultiLabelClassification

__all__ = ["CascadeClassification", "CascadeMultiLabelClassification", "answered_by"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CascadeClassification(Classification):
    """The predicted label of one text.

    As JSON: `{"label": "lost_card", "score": 0.97, "model": "small"}`.
    """

    model: str
    """The model that answered: `small` or `large`."""

    def _marks(self) -> dict[str, Any]:
        return {**Classification._marks(self), "model": self.model}

    def summary(self) -> str:
        return f"{Classification.summary(self)}\t{self.model}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CascadeMultiLabelClassification(MultiLabelClassification):
    """The predicted labels of one text.

    As JSON: `{"labels": [{"label": "joy", "score": 0.91}], "model": "large"}`.
    """

    model: str
    """The model that answered: `small` or `large`."""

    def _marks(self) -> dict[str, Any]:
        return {**MultiLabelClassification._marks(self), "model": self.model}

    def summary(self) -> str:
        return f"{MultiLabelClassification.summary(self)}\t{self.model}"


def answered_by(result: Result) -> dict[str, str]:
    """Return `{"model": "small"}` or `{"model": "large"}` for the result of a cascade, `{}` for any other."""
    if isinstance(result, CascadeClassification | CascadeMultiLabelClassification):
        return {"model": result.model}
    return {}
