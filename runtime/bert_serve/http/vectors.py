"""Embeddings of texts as one array, or of their tokens, without a `Result` for each."""

import asyncio
from typing import Any

import numpy as np

from bert_runtime.embedding import VectorShape
from bert_runtime.errors import InputError
from bert_runtime.numerics import FloatArray
from bert_runtime.similarity import cosine
from bert_runtime.tasks import FeatureExtraction, Outputs, SentenceEmbedding
from bert_runtime.tasks.tokens import merge_windows
from bert_runtime.tasks.values import stack_single_window
from bert_runtime.vector_quantization import Vectors
from bert_serve.http.model_choice import check_task
from bert_serve.http.text_inputs import run_texts_or_ids
from bert_serve.serving.caller import Caller
from bert_serve.serving.served_model import ServedModel
from bert_serve.serving.sizes import count_tokens
from bert_serve.serving.token_ids import TokenIds

__all__ = ["embed", "embed_tokens", "similarities_to_first"]


async def embed(
    served: ServedModel,
    inputs: Any,
    caller: Caller,
    *,
    normalize: bool | None = None,
    truncate: bool = True,
    **options: Any,
) -> tuple[Vectors, int]:
    """Return the embeddings of inputs, and how many tokens were read.

    Args:
        served: the model.
        inputs: a validated `TextsOrIds` with N inputs.
        caller: the request, whose connection is watched.
        normalize: whether vectors have length 1; `None`: as the bundle says.
        truncate: whether what exceeds the model's maximum may be cut off.
        options: `SentenceEmbedding.options`, such as `dimensions`; `None`: as the bundle says.

    Returns:
        Vectors [N, width], and the number of tokens, special tokens included.

    Raises:
        WrongTaskError: the model gives no embeddings.
        InputError: an input or an option cannot be processed.
        ServeError: the request cannot be answered now, or exceeds a limit; see `bert_serve.errors`.
    """
    engine = served.engine
    check_task(served, SentenceEmbedding)
    shape = VectorShape.of(engine.model.task, normalize, **options)
    given = {name: value for name, value in options.items() if value is not None}
    outputs = await run_texts_or_ids(engine, inputs, caller, truncate=truncate, options=given)
    return shape.apply(stack_single_window(outputs)), count_tokens(outputs)


def similarities_to_first(vectors: Vectors) -> FloatArray:
    """Return the cosine similarities of the first vector with each other one: [N, H] → [N - 1].

    Raises:
        InputError: the vectors are quantized.
    """
    if vectors.dtype != np.float32:
        raise InputError(f"expected vectors of float32, of which there are cosines, found {vectors.dtype}")
    return cosine(np.broadcast_to(vectors[0], vectors[1:].shape), vectors[1:])


async def embed_tokens(served: ServedModel, inputs: Any, caller: Caller, *, truncate: bool = True) -> list[FloatArray]:
    """Return the vectors of all tokens of inputs, special tokens included.

    Args:
        served: the model.
        inputs: a validated `TextsOrIds` with N inputs.
        caller: the request, whose connection is watched.
        truncate: `False` refuses texts that exceed the model's maximum, which are read in windows otherwise.

    Returns:
        N arrays [tokens, width].

    Raises:
        WrongTaskError: the model gives no token vectors.
        InputError: an input cannot be processed.
        ServeError: the request cannot be answered now, or exceeds a limit; see `bert_serve.errors`.
    """
    check_task(served, FeatureExtraction)
    outputs = await run_texts_or_ids(served.engine, inputs, caller, truncate=truncate)
    return await asyncio.to_thread(lambda: list(map(_token_vectors, outputs)))


def _token_vectors(outputs: Outputs) -> FloatArray:
    """Return the vectors of one input's tokens; ids are one window of which every token counts."""
    if isinstance(outputs.encodings[0], TokenIds):
        return outputs.arrays[0]
    return merge_windows(outputs, special_tokens=True).values
