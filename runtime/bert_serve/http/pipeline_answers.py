"""Results in the shapes of the Hugging Face pipelines, and the parameters of those.

    task                      parameters                                        answer for one input
    text-classification       top_k, function_to_apply                          [{label, score}, …], best first
    next-sentence-prediction  as text-classification                            [{label, score}, …], best first
    token-classification      aggregation_strategy, ignore_labels               [{entity_group, score, word, …}, …]
    question-answering        top_k, max_answer_len, handle_impossible_answer   {answer, score, start, end}
    fill-mask                 top_k, targets                                    [{score, token, token_str, …}, …]
    replaced-token-detection  threshold                                         [{token, score, replaced, …}, …]
    sentence-embedding        normalize, dimensions, prompt_name, …             [0.031, …]
    feature-extraction        word_pooling, special_tokens                      [[[0.031, …], …]], a vector per token
    sparse-embedding          top_k, min_weight                                 {sparse_embedding: {token: weight, …}}

The task's own decoding options are parameters, too, by their names in `bert_runtime`. Labels of a cascade have a third
key with the model that answered, `"model": "small"`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_runtime.cascade import answered_by
from bert_runtime.errors import InputError
from bert_runtime.numerics import FloatArray, sigmoid, softmax
from bert_runtime.tasks import (
    Classification,
    FeatureExtraction,
    MultiLabelClassification,
    NextSentence,
    NextSentencePrediction,
    Regression,
    Result,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
    TokenVectors,
)

__all__ = ["PipelineAnswer", "pipeline_answer", "runtime_options"]

PipelineAnswer = Callable[[Result], Any]
"""Return a result as a JSON value in the pipeline's shape."""

_OPTION_NAMES = {
    "aggregation_strategy": "aggregation",
    "max_answer_len": "max_answer_tokens",
    "handle_impossible_answer": "no_answer",
    "targets": "candidates",
}
"""Names of decoding options in `bert_runtime` by those of the pipelines, where they differ."""

_ACTIVATIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "sigmoid": sigmoid,
    "softmax": softmax,
    "none": lambda logits: logits,
}


def runtime_options(task: Task, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide a pipeline's parameters into decoding options of the task, and those of `pipeline_answer`.

    Args:
        task: the model's task.
        parameters: values by the pipeline's names; `None` stands for the default.

    Raises:
        InputError: the pipeline has no such parameter.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    shaping = _SHAPING.get(task.name, ())
    known = {name for name, option in _OPTION_NAMES.items() if option in task.options} | {*task.options, *shaping}
    if unknown := sorted(given.keys() - known):
        raise InputError(
            f"{task.name} has the parameters {', '.join(sorted(known)) or 'none'}; found {', '.join(unknown):.100}"
        )
    options = {_OPTION_NAMES.get(name, name): value for name, value in given.items() if name not in shaping}
    return options, {name: value for name, value in given.items() if name in shaping}


_SHAPING: dict[str, tuple[str, ...]] = {
    TextClassification.name: ("top_k", "function_to_apply"),
    NextSentencePrediction.name: ("top_k", "function_to_apply"),
    TokenClassification.name: ("ignore_labels",),
    SentenceEmbedding.name: ("normalize",),
}
"""Parameters that change the shape of an answer, not its decoding."""


def pipeline_answer(task: Task, parameters: Mapping[str, Any]) -> PipelineAnswer:
    """Return the function that shapes results.

    Args:
        task: the model's task; not sentence-embedding, see `bert_serve.http.vectors.embed`.
        parameters: the second part of `runtime_options`.

    Raises:
        InputError: a value is out of range or of the wrong type.
    """
    if isinstance(task, FeatureExtraction):
        return _token_vectors
    if isinstance(task, TextClassification | NextSentencePrediction):
        return _label_answer(task, parameters.get("top_k"), parameters.get("function_to_apply"))
    if ignored := parameters.get("ignore_labels"):
        return _entity_answer(ignored)
    return lambda result: result.to_dict()


def _token_vectors(result: Result) -> Any:
    assert isinstance(result, TokenVectors), "a feature-extraction model gives token vectors"
    return [result.vectors]


def _label_answer(task: TextClassification | NextSentencePrediction, top_k: Any, function: Any) -> PipelineAnswer:
    if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1):
        raise InputError(f"top_k must be a whole number of at least 1, found {top_k!r:.50}")
    if function not in (None, *_ACTIVATIONS):  # in a tuple, whatever type it has
        raise InputError(f"function_to_apply must be {', '.join(_ACTIVATIONS)}, found {function!r:.50}")

    def answer(result: Result) -> Any:
        scores = _label_scores(result) if function is None else _ACTIVATIONS[function](_logits(result))
        more = ({"truncated": True} if result.truncated else {}) | answered_by(result)
        order = np.argsort(-scores, kind="stable")[:top_k].tolist()
        return [{"label": task.labels[i], "score": float(scores[i]), **more} for i in order]

    return answer


def _logits(result: Result) -> FloatArray:
    if isinstance(result, Regression):
        return result.values
    assert isinstance(result, Classification | MultiLabelClassification | NextSentence), "a classifier's result"
    return result.logits


def _label_scores(result: Result) -> FloatArray:
    """Return the score of each label: its probability, or the number that a regression predicts."""
    if isinstance(result, Classification | MultiLabelClassification):
        return result.scores
    return softmax(_logits(result)) if isinstance(result, NextSentence) else _logits(result)


def _entity_answer(ignored: Any) -> PipelineAnswer:
    if not isinstance(ignored, list) or not all(isinstance(label, str) for label in ignored):
        raise InputError(f"ignore_labels must be a list of labels, found {ignored!r:.50}")
    labels = set(ignored)
    return lambda result: [
        entity for entity in result.to_dict() if entity.get("entity_group", entity.get("entity")) not in labels
    ]
