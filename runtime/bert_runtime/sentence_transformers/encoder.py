"""A bundle for sentence embeddings behind sentence-transformers' `SentenceTransformer`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bert_runtime.errors import InputError
from bert_runtime.model import Model
from bert_runtime.sentence_transformers.arguments import (
    as_array,
    as_list,
    check_device,
    check_unused,
    convert,
    device_of,
    open_model,
    resolve_prompt,
)
from bert_runtime.similarity import SIMILARITIES, normalized, pairwise_similarity, similarity_matrix
from bert_runtime.tasks import SentenceEmbedding
from bert_runtime.vector_quantization import EmbeddingPrecision, quantize_embeddings

__all__ = ["SentenceTransformer"]

_CONSTRUCTOR_DEFAULTS = {"backend": "onnx", "trust_remote_code": False, "local_files_only": True}
_ENCODE_DEFAULTS = {"pool": None, "chunk_size": None}

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]


class SentenceTransformer:
    """Embeddings of a bundle, with the signatures of sentence-transformers 6.

    Args:
        model_name_or_path: a bundle's folder, or a model that `bert_runtime.load` returned.
        device: where it runs; by default on the GPU if the bundle has a variant for it, else on the CPU.
        prompts: prompts by name, in addition to the bundle's, or instead of them.
        default_prompt_name: the prompt in front of every text; by default the bundle's, or its `prompt`.
        similarity_fn_name: how vectors are compared; by default as the bundle says.
        truncate_dim: how many first dimensions to keep, as in sentence-transformers without another normalization.
        precision: the bundle's variant, see `bert_runtime.load`. sentence-transformers has no such argument.
        threads: see `bert_runtime.load`. sentence-transformers has no such argument.
        unsupported: other arguments of sentence-transformers.

    Raises:
        InputError: an argument is not supported by bundles, or the bundle gives no embeddings.
        BundleError: there is no bundle.
    """

    def __init__(
        self,
        model_name_or_path: str | Path | Model,
        *,
        device: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: Similarity | None = None,
        truncate_dim: int | None = None,
        precision: str = "auto",
        threads: int | None = None,
        **unsupported: Any,
    ) -> None:
        check_unused("SentenceTransformer", unsupported, _CONSTRUCTOR_DEFAULTS)
        self.model = open_model(model_name_or_path, device, precision=precision, threads=threads)
        """The loaded bundle."""
        task = self.model.task
        if not isinstance(task, SentenceEmbedding):
            raise InputError(f"SentenceTransformer needs a bundle for sentence-embedding, found one for {task.name}")
        self._task = task
        self.prompts = {"query": "", "document": "", **task.prompts, **(prompts or {})}
        """Texts to put in front of inputs, by name; `query` and `document` are empty where the bundle has none."""
        if default_prompt_name is None and task.prompt is None:  # which is instead of the prompt called `prompt_name`
            default_prompt_name = task.prompt_name
        self.default_prompt_name = default_prompt_name
        resolve_prompt(self.prompts, self.default_prompt_name, None, None)
        self.truncate_dim = _checked_dimensions(truncate_dim)
        self.similarity_fn_name = task.similarity if similarity_fn_name is None else similarity_fn_name

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__}.{name} is not supported by bundles")

    def encode(
        self,
        inputs: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: EmbeddingPrecision = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **others: Any,
    ) -> Any:
        """Return embeddings as sentence-transformers' `encode` does.

        Args:
            inputs: a text, or several; also by the name `sentences`.
            prompt_name: which of `prompts` is put in front of each text.
            prompt: what is put in front of each text instead.
            batch_size: not read: batches are made by tokens, and do not change the result.
            show_progress_bar: whether to count the texts on stderr.
            output_value: `sentence_embedding` only.
            precision: number format; `int8` and `uint8` have the ranges of these inputs, as in sentence-transformers.
                `bert_runtime.Model.encode` has the bundle's, which make vectors of different calls comparable.
            convert_to_numpy: whether several vectors are one array; otherwise they are a list of tensors.
            convert_to_tensor: whether several vectors are one tensor.
            device: the one that the bundle was loaded on; another is refused.
            normalize_embeddings: whether vectors have length 1. A bundle may have normalized them already.
            truncate_dim: how many first dimensions to keep.
            others: `sentences`; `task` is not read; others are not supported.

        Returns:
            float32 [N, dimensions], or as the arguments say; for one text one vector.

        Raises:
            InputError: an argument is not supported by bundles, or a text cannot be processed.
        """
        others.pop("task", None)
        inputs = others.pop("sentences", inputs)
        check_unused("encode", others, _ENCODE_DEFAULTS)
        check_device("encode", device, self.model)
        if output_value != "sentence_embedding":
            raise InputError(f"encode: output_value={output_value!r} is not supported by bundles")
        if batch_size <= 0:
            raise InputError(f"encode: expected a batch_size of at least 1, found {batch_size}")
        is_single = isinstance(inputs, str)
        texts = [inputs] if is_single else as_list(inputs)
        if not texts:
            return convert(np.array([], np.float32), to_numpy=convert_to_numpy, to_tensor=convert_to_tensor)
        if prompt is None and prompt_name is None and self.default_prompt_name is None:
            prompt = self._task.prompt
        prefix = resolve_prompt(self.prompts, self.default_prompt_name, prompt, prompt_name)
        vectors = self.model.encode(texts, prompt=prefix, precision="float32", show_progress=bool(show_progress_bar))
        vectors = vectors[:, : self.truncate_dim if truncate_dim is None else _checked_dimensions(truncate_dim)]
        if normalize_embeddings:
            vectors = normalized(vectors)
        vectors = quantize_embeddings(np.ascontiguousarray(vectors), precision)
        found = convert(vectors, to_numpy=convert_to_numpy, to_tensor=convert_to_tensor)
        return found[0] if is_single else found

    def encode_query(
        self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Return embeddings of queries: `encode` with the prompt called `query`, unless another one is given."""
        if prompt_name is None and prompt is None:
            prompt_name, prompt = self._named_or_own("query")
        return self.encode(inputs, prompt_name, prompt, *args, **kwargs)

    def encode_document(
        self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Return embeddings of documents: `encode` with the prompt called `document`, unless another one is given."""
        if prompt_name is None and prompt is None:
            prompt_name, prompt = self._named_or_own("document")
        return self.encode(inputs, prompt_name, prompt, *args, **kwargs)

    def _named_or_own(self, name: str) -> tuple[str | None, str | None]:
        """Return the name of a prompt, or the bundle's `prompt` where that one is empty, if there is one."""
        own = self._task.prompt
        return (name, None) if own is None or self.prompts[name] else (None, own)

    @property
    def similarity_fn_name(self) -> str:
        """How vectors are compared: `cosine`, `dot`, `euclidean` or `manhattan`, the last two as negative distances."""
        return self._similarity

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: str) -> None:
        name = str(getattr(name, "value", name))  # of sentence-transformers' SimilarityFunction
        if name not in SIMILARITIES:
            raise InputError(f"expected a similarity_fn_name of {', '.join(SIMILARITIES)}, found {name!r:.50}")
        self._similarity = name

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray[Any, Any]:
        """Return the similarities of all pairs: vectors [N, H] and [M, H] → an array [N, M]."""
        first, second = (as_array(vectors).astype(np.float32) for vectors in (embeddings1, embeddings2))
        return similarity_matrix(first, second, self.similarity_fn_name)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray[Any, Any]:
        """Return the similarity of each vector with the other one of its row: two [N, H] → an array [N]."""
        first, second = (as_array(vectors).astype(np.float32) for vectors in (embeddings1, embeddings2))
        return pairwise_similarity(first, second, self.similarity_fn_name)

    @property
    def max_seq_length(self) -> int:
        """Longest sequence in tokens."""
        return self.model.tokenizer.max_tokens

    @property
    def device(self) -> str:
        """Where the model runs, by PyTorch's name, such as `cpu` or `cuda:0`."""
        return device_of(self.model)

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of the vectors that `encode` returns."""
        return min(self._task.dimensions, self.truncate_dim or self._task.dimensions)

    def get_sentence_embedding_dimension(self) -> int:
        """Return what `get_embedding_dimension` returns, under its earlier name."""
        return self.get_embedding_dimension()

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Keep the first `truncate_dim` dimensions within the block."""
        before, self.truncate_dim = self.truncate_dim, _checked_dimensions(truncate_dim)
        try:
            yield
        finally:
            self.truncate_dim = before


def _checked_dimensions(truncate_dim: int | None) -> int | None:
    """Return how many dimensions to keep; raise `InputError` unless it is a number of at least 1, or `None` for all."""
    if truncate_dim is not None and (not isinstance(truncate_dim, int | np.integer) or truncate_dim < 1):
        raise InputError(f"expected a truncate_dim of at least 1, found {truncate_dim!r:.50}")
    return truncate_dim
