"""Relevance of documents to a query, by a model that gives one score for a pair."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from bert_runtime.errors import InputError
from bert_runtime.numerics import FloatArray, sigmoid
from bert_runtime.ranking import query_pairs, relevance_logits
from bert_runtime.tokenization import TextTokenizer
from bert_runtime.tokenization.text_tokenizer import MAX_WINDOWED_CHARACTERS
from bert_serve.serving.caller import Caller
from bert_serve.serving.request_limits import MAX_UNBROKEN_CHARACTERS
from bert_serve.serving.served_model import ServedModel
from bert_serve.serving.sizes import count_tokens

__all__ = ["PairScores", "pair_scores"]

_CHARACTERS_PER_TOKEN = 4
"""Characters of a token, to reserve room by. A judgement."""


class PairScores(NamedTuple):
    """Relevance of N documents to a query."""

    logits: FloatArray
    """Raw scores, higher is more relevant: float32 [N]."""
    num_tokens: int
    """Tokens of all pairs, special tokens included."""

    @property
    def probabilities(self) -> FloatArray:
        """The sigmoid of each raw score, in [0, 1]: float32 [N]. With two labels, the positive one's softmax."""
        return sigmoid(self.logits)


async def pair_scores(
    served: ServedModel,
    query: str,
    documents: Sequence[str],
    caller: Caller | None = None,
    *,
    truncate: bool = True,
    max_document_tokens: int | None = None,
) -> PairScores:
    """Score a query with each of N documents; see `bert_runtime.ranking.relevance_logits`.

    Args:
        served: the model.
        query: first text of every pair.
        documents: second texts.
        caller: the request, whose connection is watched.
        truncate: whether what exceeds the model's maximum may be cut off.
        max_document_tokens: tokens of each document that are read; by default all.

    Raises:
        InputError: the model does not give one score for a pair, or names a document that it cannot process.
        ServeError: the request cannot be answered now, or exceeds a limit; see `bert_serve.errors`.
    """
    engine = served.engine  # one engine for tokenizing and computing, also if the bundle is replaced meanwhile
    relevance_logits(engine.model.task, [])
    engine.limits.check_number(len(documents))
    pairs = query_pairs(query, documents)
    with engine.reserve(query_pairs(query, _about(documents, max_document_tokens))) as reservation:
        if max_document_tokens is not None:
            shortened = await asyncio.to_thread(_shorten, documents, max_document_tokens, engine.model.tokenizer)
            pairs = query_pairs(query, shortened)
        outputs = await engine.outputs(await engine.encode(pairs, truncate=truncate), caller, reservation)
    return PairScores(relevance_logits(engine.model.task, outputs), count_tokens(outputs))


def _about(texts: Sequence[str], max_tokens: int | None) -> Sequence[str]:
    """Return roughly the part of each text that `_shorten` leaves."""
    return texts if max_tokens is None else [text[: _CHARACTERS_PER_TOKEN * max_tokens] for text in texts]


def _shorten(texts: Sequence[str], max_tokens: int, tokenizer: TextTokenizer) -> list[str]:
    """Return texts without what follows their first `max_tokens` tokens."""
    # A text without words would be tokenized whole.
    most = MAX_UNBROKEN_CHARACTERS if tokenizer.windows is None else MAX_WINDOWED_CHARACTERS
    shortened = []
    for text in texts:
        start = text[:most]
        try:
            shortened.append(start[: tokenizer.end_of_tokens(start, max_tokens)])
        except InputError:  # the engine says what is wrong with it, and which one it is
            shortened.append(text)
    return shortened
