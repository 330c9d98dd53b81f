"""Describe a model as TEI's `/info` does."""

from typing import Any

from bert_runtime import __version__
from bert_runtime.cascade import Cascade
from bert_runtime.tasks import Reranking, SentenceEmbedding, SparseEmbedding, Task, TextClassification
from bert_serve.serving.served_model import ServedModel
from bert_serve.settings import EngineSettings

__all__ = ["describe_model"]

_DTYPES = {"fp32": "float32", "fp16": "float16", "int8": "int8", "bf16": "bfloat16"}


def describe_model(served: ServedModel, settings: EngineSettings) -> dict[str, Any]:
    """Return the model (of a cascade, the large one) and its limits under TEI's names; `None` for those it has not."""
    model = served.model
    if isinstance(model, Cascade):
        model = model.large
    assert model.manifest is not None, "a loaded bundle has a manifest"
    assert model.variant is not None, "a loaded bundle has a variant"
    return {
        "model_id": served.name,
        "model_sha": model.manifest.source.get("sha256"),
        "model_dtype": _DTYPES.get(model.variant.precision, model.variant.precision),
        "served_model_name": served.name,
        "model_type": _model_type(model.task),
        "max_concurrent_requests": None,
        "max_input_length": model.tokenizer.max_tokens,
        "max_batch_tokens": model.max_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_texts,
        "auto_truncate": settings.max_tokens_per_text is None,
        "tokenization_workers": None,
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }


def _model_type(task: Task) -> dict[str, Any]:
    """Return TEI's kind of a model with its settings; other tasks under their own name."""
    if isinstance(task, SentenceEmbedding):
        return {"embedding": {"pooling": task.pooling}}
    if isinstance(task, SparseEmbedding):
        return {"embedding": {"pooling": "splade"}}
    if isinstance(task, Reranking):
        return {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
    if isinstance(task, TextClassification):
        id2label = {str(index): label for index, label in enumerate(task.labels)}
        label2id = {label: index for index, label in enumerate(task.labels)}
        kind = "reranker" if len(task.labels) == 1 else "classifier"
        return {kind: {"id2label": id2label, "label2id": label2id}}
    return {task.name: {}}
