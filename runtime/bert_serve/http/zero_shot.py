"""Zero-shot classification in the format of the Hugging Face pipelines: the labels are parameters."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from bert_runtime.errors import InputError
from bert_runtime.tasks import Task, TextClassification
from bert_runtime.zero_shot import DEFAULT_TEMPLATE, ZeroShotClassification
from bert_serve.serving.served_model import ServedModel
from bert_serve.serving.zero_shot import classify_zero_shot

__all__ = ["ZERO_SHOT", "is_zero_shot", "zero_shot_answer"]

ZERO_SHOT = "zero-shot-classification"
"""The hub's name of the task."""

_PARAMETERS = ("candidate_labels", "hypothesis_template", "multi_label")


def is_zero_shot(task: Task, parameters: Mapping[str, Any]) -> bool:
    """Return whether a request is for zero-shot classification: it brings its labels."""
    return isinstance(task, TextClassification) and parameters.get("candidate_labels") is not None


async def zero_shot_answer(served: ServedModel, inputs: Any, parameters: Mapping[str, Any], request: Request) -> Any:
    """Return the labels of a text, best first, or a list of that for a list of texts.

    Args:
        served: the model.
        inputs: a text or a list of texts.
        parameters: `candidate_labels`, a list or a text with commas; `hypothesis_template`; `multi_label`. `None`
            stands for the default.
        request: whose connection is watched.

    Raises:
        InputError: a parameter is unknown, missing or of the wrong type, or see `classify_zero_shot`.
        ServeError: see `classify_zero_shot`.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    if unknown := sorted(given.keys() - set(_PARAMETERS)):
        raise InputError(f"{ZERO_SHOT} has the parameters {', '.join(_PARAMETERS)}; found {', '.join(unknown):.100}")
    if "candidate_labels" not in given:
        raise InputError(f"{ZERO_SHOT} needs the parameter candidate_labels, a list of labels; found none")
    if not isinstance(multi_label := given.get("multi_label", False), bool):
        raise InputError(f"multi_label must be true or false, found {multi_label!r:.50}")
    template = given.get("hypothesis_template", DEFAULT_TEMPLATE)
    if not isinstance(template, str):
        raise InputError(f"hypothesis_template must be a text, found {template!r:.50}")
    texts = inputs if isinstance(inputs, list) else [inputs]
    results = await classify_zero_shot(
        served, texts, given["candidate_labels"], request,
        hypothesis_template=template, multi_label=multi_label,
    )  # fmt: skip
    answers = list(map(_answer, results))
    return answers if texts is inputs else answers[0]


def _answer(result: ZeroShotClassification) -> list[dict[str, Any]]:
    truncation = {"truncated": True} if result.truncated else {}
    return [{"label": label, "score": score, **truncation} for label, score in result.top()]
