"""sentence-embedding: one vector per text, to be compared by cosine similarity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from bert_runtime.errors import InputError
from bert_runtime.metrics import RETRIEVAL_METRIC, pearson, spearman
from bert_runtime.numerics import FloatArray
from bert_runtime.records import Record
from bert_runtime.similarity import SIMILARITIES, cosine, cosine_agreement, normalized
from bert_runtime.tasks.base import Task
from bert_runtime.tasks.checks import check_flag, check_int
from bert_runtime.tasks.ranking_rows import (
    are_ranked,
    check_scores,
    rank_vectors,
    ranking_metrics,
    ranking_qrels,
    read_ranking_row,
)
from bert_runtime.tasks.text_inputs import separate_texts
from bert_runtime.tasks.values import Example, Outputs, PromptedText, Result, TextInput, stack_single_window
from bert_runtime.tasks.vector_results import Embedding
from bert_runtime.vector_quantization import EMBEDDING_PRECISIONS, Vectors, quantize_embeddings, unpacked_embeddings

__all__ = ["DENSE_ACTIVATIONS", "PARAMETER_FREE_POOLINGS", "POOLINGS", "SentenceEmbedding"]

POOLINGS = ("mean", "cls", "max", "mean_sqrt_len", "weighted_mean", "attention")
"""How token vectors are pooled into one, padding left out.

`mean`: their mean. `cls`: the first token's vector. `max`: the maximum per dimension. `mean_sqrt_len`: their sum
divided by the square root of their number. `weighted_mean`: the mean weighted by position, counted from 1. `attention`:
the mean weighted by a learned score."""

PARAMETER_FREE_POOLINGS = tuple(name for name in POOLINGS if name != "attention")
"""Poolings without weights of their own."""

DENSE_ACTIVATIONS = ("identity", "tanh", "relu", "gelu")
"""Activations of the dense layers after pooling."""


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding(Task):
    """Pooled token vectors, with optional dense layers and L2 normalization; the graph computes all of it."""

    dimensions: int
    """Size of the embedding. If smaller than the pooled vector or the last dense layer's output, only the first
    dimensions of that are kept, before normalization (Matryoshka embeddings, Kusupati et al., arXiv:2205.13147)."""
    pooling: str = "mean"
    """How token vectors are pooled, one of `POOLINGS`."""
    dense_sizes: tuple[int, ...] = ()
    """Output size of each dense layer between pooling and normalization."""
    dense_activations: tuple[str, ...] = ()
    """Activation of each dense layer, one of `DENSE_ACTIVATIONS`."""
    layer_norm: bool = False
    """Whether the whole vector is centered and scaled to unit variance before truncation, as nomic-embed-text-v1.5
    wants it."""
    normalize: bool = True
    """Whether the embedding is L2-normalized."""
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Texts to put in front of an input, by name, such as `{"query": "search_query: "}`."""
    prompt_name: str | None = None
    """Key of the prompt that is put in front of every input; `None` for no prompt."""
    prompt: str | None = None
    """Text in front of every input, instead of the prompt called `prompt_name`."""
    include_prompt: bool = True
    """Whether the prompt's tokens are pooled, too. Without, as in Instructor models, prompts are refused."""
    similarity: str = "cosine"
    """How embeddings are compared, one of `bert_runtime.similarity.SIMILARITIES`."""
    embedding_precision: str = "float32"
    """How the numbers are stored, one of `bert_runtime.vector_quantization.EMBEDDING_PRECISIONS`."""
    ranges: tuple[tuple[float, ...], ...] | None = None
    """Smallest and largest value of each dimension in embeddings of the export's calibration texts, by which `int8`
    and `uint8` vectors are quantized: two of `dimensions`."""

    name: ClassVar[str] = "sentence-embedding"
    output: ClassVar[str] = "embedding"

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ValueError(f"expected a pooling of {', '.join(POOLINGS)}, found {self.pooling!r}")
        for name in ("normalize", "layer_norm", "include_prompt"):
            check_flag(name, getattr(self, name))
        check_int("dimensions", self.dimensions, minimum=1)
        narrow = bool(self.dense_sizes) and self.dense_sizes[-1] < self.dimensions
        if narrow or len(self.dense_sizes) != len(self.dense_activations):
            raise ValueError(
                f"expected a size and an activation per dense layer, the last of at least {self.dimensions}, "
                f"found {list(self.dense_sizes)} and {list(self.dense_activations)}"
            )
        self._check_prompts()
        if self.embedding_precision not in EMBEDDING_PRECISIONS:
            known = ", ".join(EMBEDDING_PRECISIONS)
            raise ValueError(f"expected an embedding_precision of {known}, found {self.embedding_precision!r:.50}")
        if self.similarity not in SIMILARITIES:
            raise ValueError(f"expected a similarity of {', '.join(SIMILARITIES)}, found {self.similarity!r:.50}")
        shape = None if self.ranges is None else tuple(map(len, self.ranges))
        if shape not in (None, (self.dimensions, self.dimensions)):
            raise ValueError(f"expected ranges of two times {self.dimensions} numbers, found {list(shape or ())}")
        unknown = sorted(set(self.dense_activations) - set(DENSE_ACTIVATIONS))
        if unknown:
            raise ValueError(f"expected activations of {', '.join(DENSE_ACTIVATIONS)}, found {', '.join(unknown)}")

    def _check_prompts(self) -> None:
        if not isinstance(self.prompts, Mapping) or not all(isinstance(text, str) for text in self.prompts.values()):
            raise TypeError(f"expected prompts to be texts by name, found {self.prompts!r:.100}")
        if self.prompt is None and self.prompt_name is not None and self.prompt_name not in self.prompts:
            names = f"one of {', '.join(self.prompts)}" if self.prompts else "none, since this model has no prompts"
            raise ValueError(f"expected a prompt_name of {names}, found {self.prompt_name!r:.50}")
        if not isinstance(self.prompt, str | None):
            raise TypeError(f"expected prompt to be a text, found {self.prompt!r:.50}")
        if self.text_prefix and not self.include_prompt:
            raise ValueError(
                "prompts are not supported with this model: its pooling leaves out the prompt's tokens (include_prompt "
                "is false)"
            )

    @property
    def options(self) -> tuple[str, ...]:
        return ("prompt_name", "prompt", "dimensions", "embedding_precision")

    def with_options(self, /, **options: Any) -> Self:
        """Return the task with other options; fewer `dimensions` keep the first ones of the graph's vectors.

        Raises:
            InputError: as in `Task.with_options`, or there are no `ranges` for the precision.
        """
        dimensions = options.get("dimensions", self.dimensions)
        if not isinstance(dimensions, int) or isinstance(dimensions, bool) or not 1 <= dimensions <= self.dimensions:
            raise InputError(f"dimensions must lie in 1 to {self.dimensions}, found {dimensions!r:.50}")
        if "prompt_name" in options:  # instead of the text that the task has
            options = {"prompt": None, **options}
        truncated = replace(self, dimensions=dimensions, ranges=self._ranges_of(dimensions))
        task = super(SentenceEmbedding, truncated).with_options(**options)
        if task.embedding_precision.endswith("int8") and task.ranges is None:
            raise InputError(task.no_ranges_reason)
        return task

    def _ranges_of(self, dimensions: int) -> tuple[tuple[float, ...], ...] | None:
        """Return the ranges of the first dimensions; unknown where these are normalized again, which widens them."""
        if self.ranges is None or dimensions == self.dimensions:
            return self.ranges
        return None if self.normalize else tuple(values[:dimensions] for values in self.ranges)

    @property
    def no_ranges_reason(self) -> str:
        """Why vectors of 8 bits cannot be computed without `ranges`, and what to do."""
        return (
            f"the bundle has no ranges for {self.embedding_precision} vectors of {self.dimensions} dimensions; "
            f"export it again with --dimensions {self.dimensions}, or give model.encode the ranges of typical vectors"
        )

    @property
    def text_prefix(self) -> str:
        """The prompt in front of every text; empty for none."""
        if self.prompt is not None:
            return self.prompt
        return "" if self.prompt_name is None else self.prompts[self.prompt_name]

    def for_queries(self) -> Self:
        """Return the task with the prompt called `query`.

        It stays as it is where there is no such prompt, where a `prompt` is set, or where pooling leaves prompts out.
        """
        return self._with_first_prompt("query")

    def for_documents(self) -> Self:
        """Return the task with the prompt called `document`, `passage` or `corpus`, see `for_queries`."""
        return self._with_first_prompt("document", "passage", "corpus")

    def _with_first_prompt(self, *names: str) -> Self:
        if self.prompt is not None or not self.include_prompt:
            return self
        known = [name for name in names if name in self.prompts]
        name = next((name for name in known if self.prompts[name]), known[0] if known else self.prompt_name)
        return replace(self, prompt_name=name)

    @property
    def output_width(self) -> int:
        """The embedding."""
        return self.dimensions

    @property
    def ranking_prompts(self) -> tuple[str, str]:
        """Prompts in front of a query and of a document, see `for_queries`."""
        return self.for_queries().text_prefix, self.for_documents().text_prefix

    @property
    def metric(self) -> str:
        """Spearman correlation of cosine similarities with the labelled scores."""
        return "spearman"

    def metric_for(self, examples: Sequence[Example]) -> str:
        """Return nDCG@10 for pairs without scores, else `metric`."""
        return RETRIEVAL_METRIC if are_ranked(examples) else self.metric

    def deciding_metric(self, metrics: Mapping[str, float]) -> str:
        """Return nDCG@10 on a retrieval data set, else `metric`."""
        return RETRIEVAL_METRIC if RETRIEVAL_METRIC in metrics else self.metric

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Mean cosine similarity of 0.99 with the FP32 embeddings."""
        return "mean_cosine", 0.99

    @property
    def reads_first_token_only(self) -> bool:
        """Only `cls` pooling reads the first token alone."""
        return self.pooling == "cls"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values; those that came after the first bundles only where they are set."""
        settings = super().to_dict()
        optional = {part.name: getattr(type(self)(dimensions=1), part.name) for part in fields(self)}
        for name in set(optional) - {"dimensions", "pooling", "normalize"}:
            if settings[name] == optional[name]:
                del settings[name]
        return settings

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        ranges = settings.get("ranges")
        if isinstance(ranges, list):
            settings = {**settings, "ranges": [tuple(values) for values in ranges if isinstance(values, list)]}
        return super().from_dict(settings)

    def vectors(self, computed: FloatArray) -> Vectors:
        """Truncate, normalize and quantize what the graph computed, as the settings say.

        Args:
            computed: float32 [N, at least `dimensions`], normalized by the graph where `normalize`.

        Returns:
            An array [N, `embedding_width`] of `embedding_dtype`.
        """
        kept = computed[:, : self.dimensions]
        if self.normalize and computed.shape[1] > self.dimensions:
            kept = normalized(kept)
        return quantize_embeddings(kept, self.embedding_precision, self.ranges)

    def decode(self, outputs: Outputs) -> Result:
        """Return the output, by default as it is."""
        array = outputs.arrays[0]
        if len(array) > self.dimensions or self.embedding_precision != "float32":
            array = self.vectors(array[None])[0]
        return Embedding(array, truncated=outputs.truncated)

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        """Return one text or several as separate inputs; a query and its documents have their `ranking_prompts`."""
        first, *others = separate_texts(record)
        if not others or "score" in record.fields:
            return (first, *others)
        return self._prompted(first.text, *(other.text for other in others))

    def _prompted(self, query: str, *documents: str) -> tuple[TextInput, ...]:
        prompts = self.ranking_prompts
        return (PromptedText(prompts[0] + query), *(PromptedText(prompts[1] + document) for document in documents))

    def check_rows(self, records: Sequence[Record]) -> None:
        """Raise `DataError` if only some rows have a score, or none has and a column looks like one."""
        check_scores(records)

    def example(self, record: Record) -> Example:
        """Convert a row of two texts and their similarity, on any scale, or of a query and a text that answers it.

        The target of a query is the answer, with its prompt, see `inputs`.
        """
        if "score" in record.fields:
            return Example((TextInput(record.text()), TextInput(record.text("text_pair"))), record.number("score"))
        row = read_ranking_row(record)
        query, answer = self._prompted(row.query, row.answer)
        return Example((query, answer), answer.text)

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """Correlate cosines with scores; without scores, rank all distinct second texts for each first text."""
        if are_ranked(examples):
            return ranking_metrics(self.rank(outputs, examples), ranking_qrels(examples))
        expected = np.array([example.target for example in examples], dtype=np.float64)
        vectors = self.float_vectors(outputs)
        similarity = cosine(vectors[0::2], vectors[1::2])
        return {"spearman": spearman(similarity, expected), "pearson": pearson(similarity, expected)}

    def rank(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, dict[str, float]]:
        """Return the scores of the ten nearest of all distinct second texts by first text, by `similarity`."""
        texts = [text.text for example in examples for text in example.inputs]
        return rank_vectors(texts, self.float_vectors(outputs), self.similarity)

    def float_vectors(self, outputs: Sequence[Outputs]) -> FloatArray:
        """Return the embeddings of N texts, float [N, dimensions], also where they are stored as bits."""
        vectors = self.vectors(stack_single_window(outputs))
        return unpacked_embeddings(vectors, self.embedding_precision, self.dimensions)

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        return cosine_agreement(stack_single_window(outputs), stack_single_window(reference))
