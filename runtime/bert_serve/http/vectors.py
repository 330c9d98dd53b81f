"""Embeddings of a request as one array, without a `Result` for each."""

from typing import Any

from bert_runtime.embedding import VectorShape
from bert_runtime.tasks import SentenceEmbedding
from bert_runtime.tasks.base import stack_single_window
from bert_runtime.vector_quantization import Vectors
from bert_serve.http.model_choice import check_task
from bert_serve.http.text_inputs import run_texts_or_ids
from bert_serve.serving.engine import Caller, count_tokens
from bert_serve.serving.served_model import ServedModel

__all__ = ["embed"]


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
