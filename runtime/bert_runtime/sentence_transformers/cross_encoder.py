"""A bundle that scores pairs behind sentence-transformers' `CrossEncoder`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_runtime.errors import InputError
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray, sigmoid, softmax
from bert_runtime.sentence_transformers.arguments import (
    as_list,
    check_device,
    check_unused,
    convert,
    device_of,
    open_model,
    resolve_prompt,
)
from bert_runtime.tasks import TextClassification
from bert_runtime.tasks.reranking import max_logits

__all__ = ["CrossEncoder"]

_CONSTRUCTOR_DEFAULTS = {"backend": "onnx", "trust_remote_code": False, "local_files_only": True}
_PREDICT_DEFAULTS = {"pool": None, "chunk_size": None}

Activation = Callable[[Any], Any]

_ACTIVATIONS: dict[str, Callable[[FloatArray], FloatArray]] = {"Sigmoid": sigmoid, "Identity": lambda logits: logits}
"""Functions by the names of PyTorch's classes, which programs give as `activation_fn`."""


class CrossEncoder:
    """Scores of pairs by a bundle for rerank or text-classification, with the signatures of sentence-transformers 6.

    Args:
        model_name_or_path: a bundle's folder, or a model that `bert_runtime.load` returned.
        num_labels: number of scores for a pair; another number than the bundle's is refused.
        max_length: longest pair in tokens; another number than the bundle's is refused.
        activation_fn: turns logits into scores, see `predict`; by default as the bundle says.
        device: where it runs; by default on the GPU if the bundle has a variant for it, else on the CPU.
        prompts: prompts by name, which are put in front of the first text of a pair.
        default_prompt_name: the prompt that is put in front by default.
        precision: the bundle's variant, see `bert_runtime.load`. sentence-transformers has no such argument.
        threads: see `bert_runtime.load`. sentence-transformers has no such argument.
        unsupported: other arguments of sentence-transformers.

    Raises:
        InputError: an argument is not supported by bundles, or the bundle does not score pairs.
        BundleError: there is no bundle.
    """

    def __init__(
        self,
        model_name_or_path: str | Path | Model,
        *,
        num_labels: int | None = None,
        max_length: int | None = None,
        activation_fn: Activation | None = None,
        device: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        precision: str = "auto",
        threads: int | None = None,
        **unsupported: Any,
    ) -> None:
        check_unused("CrossEncoder", unsupported, _CONSTRUCTOR_DEFAULTS)
        model = open_model(model_name_or_path, device, precision=precision, threads=threads)
        if "long_documents" in model.task.options:
            model = model.with_options(long_documents="truncate")  # as sentence-transformers reads them
        elif not isinstance(model.task, TextClassification):
            raise InputError(
                f"CrossEncoder needs a bundle for rerank or text-classification, found one for {model.task.name}"
            )
        self.model = model
        """The loaded bundle."""
        self.prompts = dict(prompts or {})
        self.default_prompt_name = default_prompt_name
        self.activation_fn = self._default_activation() if activation_fn is None else activation_fn
        for name, asked, found in (
            ("num_labels", num_labels, self.num_labels),
            ("max_length", max_length, self.max_length),
        ):
            check_unused("CrossEncoder", {name: asked}, {name: found})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__}.{name} is not supported by bundles")

    @property
    def num_labels(self) -> int:
        """Number of scores for a pair."""
        return len(self.model.task.labels) if isinstance(self.model.task, TextClassification) else 1

    @property
    def max_length(self) -> int:
        """Longest pair in tokens."""
        return self.model.tokenizer.max_tokens

    @property
    def device(self) -> str:
        """Where the model runs, by PyTorch's name, such as `cpu` or `cuda:0`."""
        return device_of(self.model)

    def _default_activation(self) -> Activation:
        """Return the sigmoid for one score, unless the bundle says otherwise, and nothing for several."""
        is_logit = self.num_labels > 1 or getattr(self.model.task, "activation", None) == "identity"
        return _ACTIVATIONS["Identity" if is_logit else "Sigmoid"]

    def predict(
        self,
        inputs: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        **others: Any,
    ) -> Any:
        """Return scores as sentence-transformers' `predict` does.

        Args:
            inputs: a pair of texts, or several; also by the name `sentences`.
            prompt_name: which of `prompts` is put in front of the first text of each pair.
            prompt: what is put in front instead.
            batch_size: not read: batches are made by tokens, and do not change the result.
            show_progress_bar: not read.
            activation_fn: turns logits [N] or [N, labels] into scores: a function of arrays, or PyTorch's `Sigmoid()`
                or `Identity()`.
            apply_softmax: whether several scores of a pair become probabilities.
            convert_to_numpy: whether the scores are an array; otherwise they are a list of tensors.
            convert_to_tensor: whether the scores are a tensor.
            others: `sentences`; `device`, which is the one that the bundle was loaded on; others are not supported.

        Returns:
            float32 [N], or [N, labels]; for one pair one score, or [labels].

        Raises:
            InputError: an argument is not supported by bundles, or a pair cannot be processed.
        """
        inputs = others.pop("sentences", inputs)
        check_device("predict", others.pop("device", None), self.model)
        check_unused("predict", others, _PREDICT_DEFAULTS)
        if batch_size <= 0:
            raise InputError(f"predict: expected a batch_size of at least 1, found {batch_size}")
        pairs = as_list(inputs)
        is_single = bool(pairs) and isinstance(pairs[0], str)
        pairs = [pairs] if is_single else pairs
        prefix = resolve_prompt(self.prompts, self.default_prompt_name, prompt, prompt_name)
        logits = self._logits(pairs, prefix)
        scores = _activation(self.activation_fn if activation_fn is None else activation_fn)(logits)
        if apply_softmax and scores.ndim > 1:
            scores = softmax(scores)
        found = convert(scores, to_numpy=convert_to_numpy, to_tensor=convert_to_tensor)
        return found[0] if is_single else found

    def _logits(self, pairs: Sequence[Any], prefix: str) -> FloatArray:
        """Return the raw outputs of pairs: float32 [N], or [N, labels]."""
        for index, pair in enumerate(pairs):
            is_pair = isinstance(pair, list | tuple | np.ndarray) and len(pair) == 2
            if not is_pair or not all(isinstance(text, str) for text in pair):
                raise InputError(f"expected a pair of texts, found {pair!r:.60}", index)
        outputs = self.model.outputs([(prefix + first, second) for first, second in pairs])
        if isinstance(self.model.task, TextClassification):
            logits = np.array([output.arrays[0] for output in outputs], np.float32).reshape(-1, self.num_labels)
            return logits[:, 0] if self.num_labels == 1 else logits
        return max_logits(outputs)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
        **others: Any,
    ) -> list[dict[str, Any]]:
        """Return documents by their scores with a query, best first, as sentence-transformers' `rank` does.

        Args:
            query: the query.
            documents: the documents.
            top_k: how many to return; by default all.
            return_documents: whether to return their texts, too.
            prompt_name: see `predict`.
            prompt: see `predict`.
            batch_size: see `predict`.
            show_progress_bar: see `predict`.
            activation_fn: see `predict`.
            others: see `predict`.

        Returns:
            `corpus_id`, the document's number, `score` and, if asked for, `text` of each.

        Raises:
            InputError: the bundle gives several scores for a pair, or as in `predict`.
        """
        if self.num_labels != 1:
            raise InputError(f"rank needs a bundle with one score for a pair, found {self.num_labels}; call predict")
        if isinstance(documents, str):
            raise InputError("expected a list of documents, found str; put one document into a list")
        documents = as_list(documents)
        pairs = [(query, document) for document in documents]
        scores = self.predict(pairs, prompt_name, prompt, batch_size, show_progress_bar, activation_fn, **others)
        ranks: list[dict[str, Any]] = [
            {"corpus_id": index, "score": float(score)} for index, score in enumerate(scores)
        ]
        if return_documents:
            ranks = [rank | {"text": documents[rank["corpus_id"]]} for rank in ranks]
        return sorted(ranks, key=lambda rank: rank["score"], reverse=True)[:top_k]


def _activation(function: Activation) -> Callable[[FloatArray], FloatArray]:
    """Return a function of arrays, also for PyTorch's modules of a known name; raise `InputError` for other modules."""
    if not type(function).__module__.startswith("torch."):
        return function
    name = type(function).__name__
    if name not in _ACTIVATIONS:
        raise InputError(
            f"activation_fn={name} is not supported by bundles; expected {' or '.join(_ACTIVATIONS)}, or a function of "
            "arrays"
        )
    return _ACTIVATIONS[name]
