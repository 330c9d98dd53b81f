"""The routes of Hugging Face's text-embeddings-inference (TEI).

TEI serves one model. Where several are served here, a request names one in a field or a query parameter `model`.
"""

import asyncio
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from bert_runtime.cascade import answered_by
from bert_runtime.errors import InputError
from bert_runtime.inputs import SingleInput
from bert_runtime.numerics import FloatArray
from bert_runtime.ranking import RANKING_TASKS
from bert_runtime.tasks import (
    Classification,
    FeatureExtraction,
    MultiLabelClassification,
    Regression,
    Result,
    SentenceEmbedding,
    SparseEmbedding,
    Task,
    TextClassification,
)
from bert_serve.errors import EmptyRequestError
from bert_serve.http.json_response import JSONResponse, example_answer, json_list
from bert_serve.http.json_route import JSONRoute
from bert_serve.http.model_choice import check_task, check_truncation_side, choose_model
from bert_serve.http.tei_info import describe_model
from bert_serve.http.tei_messages import (
    DecodeRequest,
    EmbedAllRequest,
    EmbedRequest,
    EmbedSparseRequest,
    Prediction,
    PredictRequest,
    Rank,
    SimilarityRequest,
    SparseValue,
    TEIError,
    TEIRerankRequest,
    TextOptions,
    TokenizedToken,
    TokenizeRequest,
)
from bert_serve.http.tei_tokens import texts_of_ids, tokens_of_texts
from bert_serve.http.text_inputs import run_texts_or_ids
from bert_serve.http.vectors import embed as embed_inputs
from bert_serve.http.vectors import embed_tokens, similarities_to_first
from bert_serve.serving.pair_scores import pair_scores
from bert_serve.serving.served_model import ServedModel

__all__ = ["error_body", "router"]

router = APIRouter(
    route_class=JSONRoute, tags=["TEI"], responses={"4XX": {"model": TEIError, "description": "The request failed"}}
)

_ModelName = Annotated[str | None, Query(alias="model", description="Name of the model, if not in the body.")]

_ERROR_TYPES = {400: "Empty", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return a failure as TEI's clients read it."""
    return {"error": message, "error_type": _ERROR_TYPES.get(status, "Validation" if status < 500 else "Backend")}


@router.post(
    "/embed",
    summary="Embeddings of texts or token ids",
    response_model=list[list[float]],
    responses=example_answer([[0.031, -0.046, 0.007]]),
)
async def embed(body: EmbedRequest, request: Request, name: _ModelName = None) -> Response:
    """Return a vector for each input, in order."""
    served = _choose(request, body.model or name, body, SentenceEmbedding)
    vectors, _ = await embed_inputs(
        served,
        body.inputs,
        request,
        normalize=body.normalize,
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
        truncate=body.truncate is not False,
    )
    return JSONResponse(vectors)


@router.post(
    "/embed_all",
    summary="Vectors of all tokens of texts or token ids",
    response_model=list[list[list[float]]],
    responses=example_answer([[[0.031, -0.046], [0.284, 0.113], [-0.025, 0.098]]]),
)
async def embed_all(body: EmbedAllRequest, request: Request, name: _ModelName = None) -> Response:
    """Return for each input a vector for each of its tokens, special tokens included, from the layers of the bundle.

    Texts that exceed the model's maximum are read in overlapping windows.
    """
    served = _choose(request, body.model or name, body, FeatureExtraction)
    return await json_list(await embed_tokens(served, body.inputs, request, truncate=body.truncate is not False))


@router.post(
    "/embed_sparse",
    summary="Sparse vectors: weights of the vocabulary's tokens",
    response_model=list[list[SparseValue]],
    responses=example_answer([[{"index": 2439, "value": 2.31}, {"index": 4003, "value": 2.42}]]),
)
async def embed_sparse(body: EmbedSparseRequest, request: Request, name: _ModelName = None) -> Response:
    """Return for each input the token ids that have a weight, in ascending order, with their weights."""
    served = _choose(request, body.model or name, body, SparseEmbedding)
    outputs = await run_texts_or_ids(served.engine, body.inputs, request, truncate=body.truncate is not False)
    return JSONResponse(await asyncio.to_thread(_sparse_values, [output.arrays[0] for output in outputs]))


def _sparse_values(weights: list[FloatArray]) -> list[list[dict[str, Any]]]:
    """Return the weights above 0 of vectors [vocabulary]."""
    found = [np.flatnonzero(vector > 0) for vector in weights]
    return [
        [{"index": index, "value": value} for index, value in zip(ids.tolist(), vector[ids].tolist(), strict=True)]
        for ids, vector in zip(found, weights, strict=True)
    ]


@router.post(
    "/similarity",
    summary="Cosine similarities of a sentence with others",
    response_model=list[float],
    responses=example_answer([0.82, 0.07]),
)
async def similarity(body: SimilarityRequest, request: Request, name: _ModelName = None) -> Response:
    """Return the cosine similarity of the source sentence with each other one, in order."""
    options = body.parameters or TextOptions()
    served = _choose(request, body.model or name, options, SentenceEmbedding)
    _check_not_empty(body.inputs.sentences, "inputs.sentences")
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    vectors, _ = await embed_inputs(
        served, texts, request, truncate=options.truncate is not False, prompt_name=options.prompt_name
    )
    return JSONResponse(similarities_to_first(vectors))


@router.post(
    "/predict",
    summary="Labels of texts or pairs of texts, best first",
    response_model=list[Prediction] | list[list[Prediction]],
    responses=example_answer([[{"label": "lost_card", "score": 0.97}, {"label": "greeting", "score": 0.03}]]),
)
async def predict(body: PredictRequest, request: Request, name: _ModelName = None) -> Response:
    """Return all labels with their scores, best first: a list for one input, a list of lists for a batch.

    Scores are probabilities: a softmax over all labels, or a sigmoid each where a text may have several. Of regression
    they are the predicted numbers. Labels of a cascade have the model that answered, `small` or `large`.
    """
    served = _choose(request, body.model or name, body, TextClassification)
    if isinstance(body.inputs, list) and isinstance(next(iter(body.inputs), None), list):  # else one text, or a pair
        served.engine.limits.check_number(len(body.inputs))
    inputs = _sequences(body.inputs)
    results = await served.results(inputs, request, truncate=body.truncate is not False)
    predictions = [_predictions(result, body.raw_scores) for result in results]
    is_batch = isinstance(body.inputs, list) and isinstance(body.inputs[0], list)
    return JSONResponse(predictions if is_batch else predictions[0])


def _sequences(inputs: str | list[str] | list[list[str]]) -> list[SingleInput]:
    """Return a text, a pair of texts, or a batch of both as inputs of the runtime."""
    if isinstance(inputs, str):
        return [inputs]
    _check_not_empty(inputs, "inputs")
    if isinstance(inputs[0], str):
        inputs = [inputs]  # the first item tells a pair from a batch
    sequences: list[SingleInput] = []
    for index, texts in enumerate(inputs):
        if not 1 <= len(texts) <= 2:
            raise InputError(
                f"expected one text or two, found {len(texts)}; write a batch of texts as [[text], [text], …]", index
            )
        sequences.append(texts[0] if len(texts) == 1 else (texts[0], texts[1]))
    return sequences


def _predictions(result: Result, raw_scores: bool) -> list[dict[str, Any]]:
    """Return all labels of a result with their scores, best first."""
    if isinstance(result, Regression):
        scores = result.values
    else:
        assert isinstance(result, Classification | MultiLabelClassification), "as the task was checked"
        scores = result.logits if raw_scores else result.scores
    model = answered_by(result)
    order = np.argsort(-scores, kind="stable")
    return [{"label": result.labels[index], "score": scores[index], **model} for index in order]


@router.post(
    "/rerank",
    summary="Texts in the order of their relevance to a query",
    response_model=list[Rank],
    response_model_exclude_none=True,
    responses=example_answer([{"index": 1, "score": 0.97}, {"index": 0, "score": 0.02}]),
)
async def rerank(body: TEIRerankRequest, request: Request, name: _ModelName = None) -> Response:
    """Return the texts' numbers with their scores, best first, from a model that gives one score for a pair.

    A score is the sigmoid of the model's logit, or with `raw_scores` the logit.
    """
    served = _choose(request, body.model or name, body, *RANKING_TASKS)
    _check_not_empty(body.texts, "texts")
    found = await pair_scores(served, body.query, body.texts, request, truncate=body.truncate is not False)
    scores = found.logits if body.raw_scores else found.probabilities
    ranks = [{"index": index, "score": scores[index]} for index in np.argsort(-found.logits, kind="stable").tolist()]
    if body.return_text:
        ranks = [rank | {"text": body.texts[rank["index"]]} for rank in ranks]
    return JSONResponse(ranks)


@router.post(
    "/tokenize",
    summary="All tokens of texts, with their places",
    response_model=list[list[TokenizedToken]],
    responses=example_answer([[{"id": 7592, "text": "hello", "special": False, "start": 0, "stop": 5}]]),
)
async def tokenize(body: TokenizeRequest, request: Request, name: _ModelName = None) -> Response:
    """Return the tokens of each text, also those beyond the model's maximum. Places count UTF-8 bytes."""
    served = request.app.state.models.resolve(body.model or name)
    prefix = _check_prompt(body.prompt_name, served)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    _check_not_empty(texts, "inputs")
    served.engine.limits.check_number(len(texts))
    return JSONResponse(
        await asyncio.to_thread(
            tokens_of_texts, served.model.tokenizer, [prefix + text for text in texts], body.add_special_tokens
        )
    )


@router.post(
    "/decode", summary="The texts of token ids", response_model=list[str], responses=example_answer(["i lost my card"])
)
async def decode(body: DecodeRequest, request: Request, name: _ModelName = None) -> Response:
    """Return the text of each list of token ids."""
    served = request.app.state.models.resolve(body.model or name)
    _check_not_empty(body.ids, "ids")
    sequences: Any = [body.ids] if isinstance(body.ids[0], int) else body.ids
    served.engine.limits.check_number(len(sequences), "lists of ids")
    return JSONResponse(
        await asyncio.to_thread(texts_of_ids, served.model.tokenizer, sequences, body.skip_special_tokens)
    )


@router.get(
    "/info",
    summary="The model and its limits",
    response_model=dict[str, Any],
    responses=example_answer(
        {"model_id": "minilm", "model_type": {"embedding": {"pooling": "mean"}}, "max_input_length": 256}
    ),
)
async def info(request: Request, name: _ModelName = None) -> Response:
    """Return the model's task and maximum length, and the server's limits; `null`: there is no such limit."""
    served = request.app.state.models.resolve(name)
    return JSONResponse(describe_model(served, request.app.state.settings.engine))


def _choose(request: Request, name: str | None, options: TextOptions, *tasks: type[Task]) -> ServedModel:
    """Return the model that a request means, and check that it can read texts as asked."""
    served = choose_model(request.app.state.models, name, *tasks)
    check_task(served, *tasks)
    _check_prompt(options.prompt_name, served)
    check_truncation_side(served, options.truncation_direction)
    return served


def _check_prompt(prompt_name: str | None, served: ServedModel) -> str:
    """Return the text of a prompt; raise `InputError` where the model does not have it."""
    if prompt_name is None:
        return ""
    if not isinstance(served.model.task, SentenceEmbedding):
        raise InputError(f"prompt_name: expected none, since model {served.name!r} gives no embeddings")
    return served.model.task.with_options(prompt_name=prompt_name).text_prefix


def _check_not_empty(values: list[Any], field: str) -> None:
    if not values:
        raise EmptyRequestError(f"{field}: expected at least one, found none")
