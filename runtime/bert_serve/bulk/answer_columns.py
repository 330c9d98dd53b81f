"""Results as Arrow columns: the fields of each task, and the arrays of many results.

The fields are those of the results' JSON shape, so that a file of answers reads like the output of
`bert-export predict --json`. A text that was truncated is marked, see `answer_fields`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bert_runtime import (
    Embedding,
    FeatureExtraction,
    Fillings,
    FillMask,
    InputFailure,
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    Reranking,
    Result,
    SentenceEmbedding,
    SparseEmbedding,
    SparseVector,
    Task,
    TextClassification,
    TokenClassification,
    TokenVectors,
)
from bert_runtime.cascade.task import CascadeTask
from bert_runtime.vector_quantization import embedding_dtype, embedding_width

__all__ = ["ERROR", "TRUNCATED", "Answer", "answer_arrays", "answer_fields"]

ERROR = "error"
"""Column of the reason why a row has no answer; null where it has one."""

TRUNCATED = "truncated"
"""Column that says whether the answer is for a part of the text, which has more tokens than the model reads."""

Answer = Result | InputFailure

_LABEL = [pa.field("label", pa.string()), pa.field("score", pa.float32())]
_SPAN = [pa.field("start", pa.int32()), pa.field("end", pa.int32())]


def answer_fields(task: Task, *, errors: bool) -> list[pa.Field]:
    """Return the columns of a task's answers.

    Args:
        task: the task, with the options that it decodes with.
        errors: whether there is a column `ERROR`.

    Returns:
        The task's own fields, `TRUNCATED` for tasks that truncate long texts, and `ERROR`. All are nullable.
    """
    fields = list(_FIELDS[task.name](task))
    if task.windows is None:
        fields.append(pa.field(TRUNCATED, pa.bool_()))
    if errors:
        fields.append(pa.field(ERROR, pa.string()))
    return fields


def answer_arrays(fields: Sequence[pa.Field], answers: Sequence[Answer]) -> list[pa.Array]:
    """Return the columns of answers.

    Args:
        fields: what `answer_fields` returned.
        answers: N answers of that task; the columns of an `InputFailure` are null, except for `ERROR`.

    Returns:
        An array [N] for each field.
    """
    names = [field.name for field in fields]
    if names[0] == "embedding":
        columns: dict[str, Any] = {"embedding": _vectors(answers, fields[0].type)}
    elif names[0] == "vectors":
        columns = _token_columns(answers, fields)
    else:
        rows = [{} if isinstance(answer, InputFailure) else _row(answer, names[0]) for answer in answers]
        columns = {name: [row.get(name) for row in rows] for name in names}
    if TRUNCATED in names:
        columns[TRUNCATED] = [None if isinstance(answer, InputFailure) else answer.truncated for answer in answers]
    if ERROR in names:
        columns[ERROR] = [_storable(answer.error) if isinstance(answer, InputFailure) else None for answer in answers]
    return [
        columns[field.name] if isinstance(columns[field.name], pa.Array) else pa.array(columns[field.name], field.type)
        for field in fields
    ]


def _row(result: Result, first_name: str) -> dict[str, Any]:
    """Return a result's values by column; a result whose JSON is a list has one column, named `first_name`."""
    if isinstance(result, Fillings):  # whose JSON has a list less for a single mask: a column has one type
        return {"masks": [[filling.to_dict() for filling in fillings] for fillings in result.masks]}
    if isinstance(result, SparseVector):  # whose JSON has a key per token
        return {"indices": result.indices.tolist(), "weights": result.weights.tolist(), "tokens": result.tokens}
    value = result.to_dict()
    return value if isinstance(value, dict) else {first_name: value}


def _vectors(answers: Sequence[Answer], kind: pa.FixedSizeListType) -> pa.Array:
    """Return embeddings as one column without a Python number for each value: a list of fixed size [N]."""
    vectors = np.zeros((len(answers), kind.list_size), dtype=kind.value_type.to_pandas_dtype())
    missing = np.zeros(len(answers), dtype=bool)
    for vector, (index, answer) in zip(vectors, enumerate(answers), strict=True):
        if isinstance(answer, Embedding):
            vector[:] = answer.vector
        else:
            missing[index] = True
    mask = pa.array(missing) if missing.any() else None
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), type=kind, mask=mask)


def _token_columns(answers: Sequence[Answer], fields: Sequence[pa.Field]) -> dict[str, Any]:
    """Return token vectors as a list of vectors for each text, and the tokens and their characters beside them."""
    found = [answer if isinstance(answer, TokenVectors) else None for answer in answers]
    missing = pa.array([answer is None for answer in found])
    ends = np.cumsum([0, *(0 if answer is None else len(answer.vectors) for answer in found)], dtype=np.int32)
    parts = [answer.vectors.ravel() for answer in found if answer is not None]
    flat = pa.array(np.concatenate(parts) if parts else np.empty(0, np.float32))
    kind = fields[0].type
    vectors = pa.FixedSizeListArray.from_arrays(flat, type=kind.value_type)
    return {
        "vectors": pa.ListArray.from_arrays(pa.array(ends), vectors, type=kind, mask=missing),
        "tokens": [None if answer is None else list(answer.tokens) for answer in found],
        "start": [None if answer is None else answer.offsets[:, 0].tolist() for answer in found],
        "end": [None if answer is None else answer.offsets[:, 1].tolist() for answer in found],
    }


def _storable(text: str) -> str:
    r"""Write lone surrogates, which Arrow's strings cannot hold, as `\udce9`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _classification_fields(task: Task) -> list[pa.Field]:
    assert isinstance(task, TextClassification)
    model = [pa.field("model", pa.string())] if isinstance(task, CascadeTask) else []
    if task.top_k is not None:
        return [pa.field("labels", pa.list_(pa.struct([*_LABEL, *model])))]
    if task.problem_type == "multi_label":
        return [pa.field("labels", pa.list_(pa.struct(_LABEL))), *model]
    if task.problem_type == "regression" and len(task.labels) > 1:
        return [pa.field("scores", pa.struct([pa.field(label, pa.float32()) for label in task.labels]))]
    return [*_LABEL, *model]


def _entity_fields(task: Task) -> list[pa.Field]:
    assert isinstance(task, TokenClassification)
    if task.aggregation == "none":
        names = [pa.field("entity", pa.string()), _LABEL[1], pa.field("index", pa.int32())]
    else:
        names = [pa.field("entity_group", pa.string()), _LABEL[1]]
    return [pa.field("entities", pa.list_(pa.struct([*names, pa.field("word", pa.string()), *_SPAN])))]


def _answer_fields(task: Task) -> list[pa.Field]:
    assert isinstance(task, QuestionAnswering)
    fields = [pa.field("answer", pa.string()), _LABEL[1], *_SPAN]
    return fields if task.top_k == 1 else [pa.field("answers", pa.list_(pa.struct(fields)))]


def _mask_fields(task: Task) -> list[pa.Field]:
    filling = [
        _LABEL[1],
        pa.field("token", pa.int32()),
        pa.field("token_str", pa.string()),
        pa.field("sequence", pa.string()),
    ]
    return [pa.field("masks", pa.list_(pa.list_(pa.struct(filling))))]


def _token_fields(task: Task) -> list[pa.Field]:
    token = [pa.field("token", pa.string()), _LABEL[1], pa.field("replaced", pa.bool_()), *_SPAN]
    return [pa.field("tokens", pa.list_(pa.struct(token)))]


def _embedding_fields(task: Task) -> list[pa.Field]:
    assert isinstance(task, SentenceEmbedding)
    kind = pa.from_numpy_dtype(embedding_dtype(task.embedding_precision))
    return [pa.field("embedding", pa.list_(kind, embedding_width(task.embedding_precision, task.dimensions)))]


def _feature_fields(task: Task) -> list[pa.Field]:
    assert isinstance(task, FeatureExtraction)
    vectors = pa.field("vectors", pa.list_(pa.list_(pa.float32(), task.output_width)))
    kinds = {"tokens": pa.string(), "start": pa.int32(), "end": pa.int32()}
    return [vectors, *(pa.field(name, pa.list_(kind)) for name, kind in kinds.items())]


def _sparse_fields(task: Task) -> list[pa.Field]:
    kinds = {"indices": pa.int32(), "weights": pa.float32(), "tokens": pa.string()}
    return [pa.field(name, pa.list_(kind)) for name, kind in kinds.items()]


_FIELDS: Mapping[str, Callable[[Task], list[pa.Field]]] = {
    TextClassification.name: _classification_fields,
    TokenClassification.name: _entity_fields,
    QuestionAnswering.name: _answer_fields,
    FillMask.name: _mask_fields,
    NextSentencePrediction.name: lambda task: _LABEL,
    ReplacedTokenDetection.name: _token_fields,
    SentenceEmbedding.name: _embedding_fields,
    SparseEmbedding.name: _sparse_fields,
    FeatureExtraction.name: _feature_fields,
    Reranking.name: lambda task: [_LABEL[1], pa.field("logit", pa.float32())],
}
"""A function for each task's own fields."""
