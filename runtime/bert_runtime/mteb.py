"""A bundle as an encoder of MTEB, the Massive Text Embedding Benchmark (package `mteb`, release 2).

import mteb
from bert_runtime.mteb import MTEBEncoder

results = mteb.evaluate(MTEBEncoder("bundle/"), mteb.get_tasks(["NFCorpus"]))
"""

from pathlib import Path
from typing import Any

import numpy as np

from bert_runtime.errors import InputError, MissingExtraError
from bert_runtime.model import Model
from bert_runtime.sentence_transformers.arguments import as_array, convert, open_model
from bert_runtime.similarity import pairwise_similarity, similarity_matrix
from bert_runtime.tasks import SentenceEmbedding
from bert_runtime.vector_quantization import Vectors, unpacked_embeddings

__all__ = ["MTEBEncoder"]


class MTEBEncoder:
    """Embeddings of a bundle by MTEB's `EncoderProtocol`.

    Prompts are chosen as MTEB does: that called like the task and the kind of text (`NFCorpus-query`), the task, the
    task's type and kind, its type, and the kind alone. Without any, documents have the prompt called `passage` or
    `corpus`, or the bundle's own. Models whose pooling leaves prompts out (`include_prompt`) get none.

    Args:
        bundle: a bundle's folder, or a model that `bert_runtime.load` returned.
        name: the model's name in results, `organization/name`.
        revision: the model's revision in results; by default the SHA-256 of the checkpoint's weights.
        device: see `bert_runtime.load`.
        options: of `bert_runtime.load`, such as `precision`.

    Raises:
        InputError: the bundle gives no embeddings.
        BundleError: there is no bundle.
    """

    def __init__(
        self,
        bundle: str | Path | Model,
        revision: str | None = None,
        *,
        name: str = "bert-export/bundle",
        device: str | None = None,
        **options: Any,
    ) -> None:
        self.model = open_model(bundle, device, **options)
        """The loaded bundle."""
        if not isinstance(self.model.task, SentenceEmbedding):
            raise InputError(f"MTEB needs a bundle for sentence-embedding, found one for {self.model.task.name}")
        self._task = self.model.task
        source = {} if self.model.manifest is None else self.model.manifest.source
        self._name, self._revision = name, revision or source.get("sha256")

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> Vectors:
        """Return the embeddings of texts.

        Args:
            inputs: yields batches, which have N texts in all under `text`.
            task_metadata: name and type of the benchmark's task.
            hf_split: not read.
            hf_subset: not read.
            prompt_type: the kind of text, `query` or `document`; `None` for neither.
            kwargs: not read: batches are made by tokens.

        Returns:
            An array [N, dimensions]; of binary vectors their signs.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        task = self._prompted(task_metadata, None if prompt_type is None else str(prompt_type.value))
        vectors = self.model.encode(texts, prompt=task.text_prefix)
        return unpacked_embeddings(vectors, task.embedding_precision, task.dimensions)

    def _prompted(self, task_metadata: Any, kind: str | None) -> SentenceEmbedding:
        if not self._task.include_prompt:
            return self._task
        topics = (task_metadata.name, task_metadata.type)
        names = [name for topic in topics for name in ((f"{topic}-{kind}", topic) if kind else (topic,))]
        chosen = next((name for name in names if name in self._task.prompts), None)
        if chosen is not None:
            return self._task.with_options(prompt_name=chosen)
        if kind is None:
            return self._task
        return self._task.for_queries() if kind == "query" else self._task.for_documents()

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities of all pairs of vectors: [N, H] and [M, H] → a tensor [N, M]."""
        first, second = (as_array(vectors).astype(np.float32) for vectors in (embeddings1, embeddings2))
        scores = similarity_matrix(first, second, self._task.similarity)
        return convert(scores, to_numpy=False, to_tensor=True)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarity of each vector with the other one of its row: two [N, H] → a tensor [N]."""
        first, second = (as_array(vectors).astype(np.float32) for vectors in (embeddings1, embeddings2))
        scores = pairwise_similarity(first, second, self._task.similarity)
        return convert(scores, to_numpy=False, to_tensor=True)

    @property
    def mteb_model_meta(self) -> Any:
        """Return MTEB's metadata of the model; raise `MissingExtraError` where `mteb` is not installed."""
        try:
            from mteb.models import ModelMeta
        except ImportError:
            raise MissingExtraError("mteb", "mteb", "MTEB's metadata of a model") from None
        settings = {
            "name": self._name,
            "revision": self._revision,
            "max_tokens": self.model.tokenizer.max_tokens,
            "embed_dim": self._task.dimensions,
            "similarity_fn_name": self._task.similarity,
            "use_instructions": bool(self._task.prompts),
            "framework": ["ONNX"],
        }
        return ModelMeta.create_empty(settings)
