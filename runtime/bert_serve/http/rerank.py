"""Reranking in the format of Cohere and Jina: documents in the order of their relevance to a query."""

from typing import Annotated, Any
from uuid import uuid4

import numpy as np
from fastapi import APIRouter, Body
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from bert_runtime.ranking import RANKING_TASKS
from bert_serve.http.json_response import JSONResponse
from bert_serve.http.json_route import JSONRoute
from bert_serve.http.model_choice import check_task, choose_model
from bert_serve.serving.pair_scores import pair_scores

__all__ = ["error_body", "router"]


class RerankError(BaseModel):
    """A failure."""

    message: str


router = APIRouter(
    route_class=JSONRoute,
    tags=["Cohere and Jina"],
    responses={"4XX": {"model": RerankError, "description": "The request failed"}},
)

_REQUESTS: dict[str, Any] = {
    "texts": {
        "summary": "Documents as texts",
        "value": {
            "model": "reranker",
            "query": "Where is my parcel?",
            "documents": ["Your parcel is late.", "The bank is closed.", "Parcels come by train."],
            "top_n": 2,
        },
    },
    "objects": {
        "summary": "Documents as objects, returned with their scores",
        "value": {
            "query": "Where is my parcel?",
            "documents": [{"text": "Your parcel is late."}, {"text": "The bank is closed."}],
            "return_documents": True,
            "max_tokens_per_doc": 128,
        },
    },
}

_ANSWER = {
    "id": "7b5f7a0e-8d2c-4a52-9a0f-2f4f2a1a7a55",
    "model": "reranker",
    "results": [{"index": 0, "relevance_score": 0.93}, {"index": 2, "relevance_score": 0.41}],
    "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": 43}},
    "usage": {"total_tokens": 43},
}


class Document(BaseModel):
    """A document as an object."""

    text: str


class RerankRequest(BaseModel):
    """A query, and the documents to sort by their relevance to it."""

    model: str | None = Field(None, description="Name of the model; needed where several are served.")
    query: str
    documents: Annotated[list[str | Document], Field(fail_fast=True)] = Field(min_length=1)
    top_n: int | None = Field(None, ge=1, description="How many of the best documents to return; by default all.")
    return_documents: bool | None = Field(None, description="Whether results hold the documents' texts.")
    max_tokens_per_doc: int | None = Field(
        None,
        ge=1,
        description="Tokens of a document that are read; by default all, in windows unless the bundle truncates.",
    )


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return a failure as Cohere's clients expect it."""
    return {"message": message}


@router.post(
    "/v1/rerank",
    summary="Sort documents by relevance (Cohere v1, Jina)",
    responses={200: {"content": {"application/json": {"example": _ANSWER}}}},
)
async def rerank_v1(body: Annotated[RerankRequest, Body(openapi_examples=_REQUESTS)], request: Request) -> Response:
    """Score each document with the query, and return the best ones first.

    The model is a rerank bundle, or a text-classification bundle of pairs that gives one number, one label, or two
    exclusive labels. `relevance_score` lies in [0, 1]: the sigmoid of the number, or the probability of the positive
    label, which is the second one unless its name negates the first (`entailment`, `not_entailment`).
    """
    return await _rerank(body, request, "1")


@router.post(
    "/v2/rerank",
    summary="Sort documents by relevance (Cohere v2)",
    responses={200: {"content": {"application/json": {"example": _ANSWER}}}},
)
async def rerank_v2(body: Annotated[RerankRequest, Body(openapi_examples=_REQUESTS)], request: Request) -> Response:
    """Do what `/v1/rerank` does, for clients of the second version."""
    return await _rerank(body, request, "2")


async def _rerank(body: RerankRequest, request: Request, version: str) -> Response:
    served = choose_model(request.app.state.models, body.model, *RANKING_TASKS)
    check_task(served, *RANKING_TASKS)
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    scores = await pair_scores(served, body.query, texts, request, max_document_tokens=body.max_tokens_per_doc)
    relevance = scores.probabilities.tolist()
    results = []
    for index in np.argsort(-scores.logits, kind="stable")[: body.top_n].tolist():
        document = {"document": {"text": texts[index]}} if body.return_documents else {}
        results.append({"index": index, "relevance_score": relevance[index], **document})
    answer = {
        "id": str(uuid4()),
        "model": served.name,
        "results": results,
        "meta": {"api_version": {"version": version}, "tokens": {"input_tokens": scores.num_tokens}},
        "usage": {"total_tokens": scores.num_tokens},
    }
    return JSONResponse(answer)
