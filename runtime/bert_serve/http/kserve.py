"""KServe's Open Inference Protocol (version 2), with the extension for binary tensor data.

Inputs are texts: BYTES tensors of shape [N] or [N, 1]. A model answers with `embedding` (FP32 [N, dimensions]) where it
computes embeddings, else with `answers` (BYTES [N]): decoded answers as JSON, entities and spans included.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from bert_runtime import __version__
from bert_runtime.errors import InputError
from bert_runtime.tasks import Embedding, Result, SentenceEmbedding, Task, TokenVectors
from bert_serve.errors import ModelNotFoundError, ModelNotReadyError
from bert_serve.http.content_type import check_json_or_binary
from bert_serve.http.json_response import JSONResponse, example_answer
from bert_serve.http.kserve_tensors import (
    OutputTensor,
    RequestedOutput,
    read_request,
    write_response,
)
from bert_serve.pair_inputs import PAIR_INPUTS
from bert_serve.serving.served_model import ServedModel

__all__ = ["error_body", "router"]


class KServeError(BaseModel):
    """A failure."""

    error: str


router = APIRouter(tags=["KServe"], responses={"4XX": {"model": KServeError, "description": "The request failed"}})

_VERSION = "1"
"""The only version of each model; a bundle that is replaced on disk keeps it."""

_JSON_LENGTH = "Inference-Header-Content-Length"

_SCHEDULING = ("priority", "timeout", "sequence_id", "sequence_start", "sequence_end")
"""Parameters that Triton's client sends for its scheduler, in each request where they are used; not read."""


def _tensor(name: str, *texts: str) -> dict[str, Any]:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}


_EXAMPLES: dict[str, Any] = {
    "sentence-embedding": {
        "summary": "Embeddings of two texts",
        "value": {"inputs": [_tensor("text", "Where is my parcel?", "My card is lost.")]},
    },
    "question-answering": {
        "summary": "The two best answers to a question",
        "value": {
            "id": "42",
            "parameters": {"top_k": 2},
            "inputs": [_tensor("question", "Where to?"), _tensor("context", "The train goes to Paris. It is late.")],
            "outputs": [{"name": "answers"}],
        },
    },
    "token-classification": {
        "summary": "Entities with their characters",
        "value": {"inputs": [_tensor("text", "The train goes to Paris.")]},
    },
}

_METADATA = {
    "name": "minilm",
    "versions": ["1"],
    "platform": "bert-export",
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
    "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [-1, 384]}],
}

_ANSWER = {
    "model_name": "entities",
    "model_version": "1",
    "outputs": [
        {
            "name": "answers",
            "datatype": "BYTES",
            "shape": [1],
            "data": ['[{"entity_group":"LOC","score":0.99,"word":"Paris","start":18,"end":23}]'],
        }
    ],
}

_REQUEST_BODY = {
    "required": True,
    "description": "JSON; or JSON of the length in the header Inference-Header-Content-Length, and binary data.",
    "content": {"application/json": {"schema": {"type": "object", "required": ["inputs"]}, "examples": _EXAMPLES}},
}


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return a failure as the protocol defines it."""
    return {"error": message}


@router.get(
    "/v2",
    summary="The server's name, version and extensions",
    responses=example_answer({"name": "bert-export", "version": "0.1.0", "extensions": ["binary_tensor_data"]}),
)
async def server_metadata() -> Response:
    """Describe the server."""
    return JSONResponse({"name": "bert-export", "version": __version__, "extensions": ["binary_tensor_data"]})


@router.head("/v2/health/live", include_in_schema=False)
@router.get("/v2/health/live", summary="Alive: the server answers", responses=example_answer({"live": True}))
async def server_live(request: Request) -> Response:
    """Answer 200 while the server runs, also before its models are loaded; 503 where a model is broken."""
    request.app.state.models.check_working()
    return JSONResponse({"live": True})


@router.head("/v2/health/ready", include_in_schema=False)
@router.get(
    "/v2/health/ready",
    summary="Ready: all models are loaded and have passed their self-tests",
    responses=example_answer({"ready": True}),
)
async def server_ready(request: Request) -> Response:
    """Answer 200 once all models are loaded and have passed their self-tests, 503 before."""
    request.app.state.models.check_working()
    if not request.app.state.models.ready:
        raise ModelNotReadyError("models are being loaded; try again")
    return JSONResponse({"ready": True})


async def _named(request: Request, name: str) -> ServedModel:
    served: ServedModel = request.app.state.models.resolve(name)
    return served


async def _versioned(request: Request, name: str, version: str) -> ServedModel:
    served = await _named(request, name)
    if version != _VERSION:
        raise ModelNotFoundError(f"expected version {_VERSION} of model {served.name!r}, found {version!r:.50}")
    return served


def _add_model_routes(prefix: str, find: Callable[..., Awaitable[ServedModel]]) -> None:
    """Add the routes of a model, with or without its version."""

    @router.get(prefix, summary="A model's inputs and outputs", responses=example_answer(_METADATA))
    async def model_metadata(served: Annotated[ServedModel, Depends(find)]) -> Response:
        """Describe a model."""
        return JSONResponse(_describe(served))

    @router.get(
        f"{prefix}/ready",
        summary="Ready: the model is loaded and has passed its self-test",
        responses=example_answer({"name": "minilm", "ready": True}),
    )
    async def model_ready(served: Annotated[ServedModel, Depends(find)]) -> Response:
        """Answer 200 once the model is loaded and has passed its self-test, 503 before."""
        served.check_working()
        if not served.ready:
            raise ModelNotReadyError(f"model {served.name!r} is being loaded; try again")
        return JSONResponse({"name": served.name, "ready": True})

    @router.post(
        f"{prefix}/infer",
        summary="Answers for texts",
        openapi_extra={"requestBody": _REQUEST_BODY},
        responses=example_answer(_ANSWER),
    )
    async def infer(served: Annotated[ServedModel, Depends(find)], request: Request) -> Response:
        """Return decoded answers, or embeddings.

        `parameters` may hold decoding options of the task, such as `top_k` or `aggregation`.
        """
        return await _infer(served, request)


_add_model_routes("/v2/models/{name}", _named)
_add_model_routes("/v2/models/{name}/versions/{version}", _versioned)


def _describe(served: ServedModel) -> dict[str, Any]:
    """Return a model's metadata."""
    task = served.model.task
    first, second = PAIR_INPUTS.get(task.name, ("text", "text_pair"))
    inputs: list[dict[str, Any]] = [{"name": first, "datatype": "BYTES", "shape": [-1]}]
    if task.name in PAIR_INPUTS:
        inputs.append({"name": second, "datatype": "BYTES", "shape": [-1]})
    elif task.name == "text-classification":
        inputs.append({"name": second, "datatype": "BYTES", "shape": [-1], "parameters": {"optional": True}})
    output: dict[str, Any] = {"name": "answers", "datatype": "BYTES", "shape": [-1]}
    if isinstance(task, SentenceEmbedding):
        output = {"name": "embedding", "datatype": "FP32", "shape": [-1, task.dimensions]}
    return {
        "name": served.name,
        "versions": [_VERSION],
        "platform": "bert-export",
        "inputs": inputs,
        "outputs": [output],
    }


async def _infer(served: ServedModel, request: Request) -> Response:
    check_json_or_binary(request)
    if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
        raise HTTPException(415, f"expected a body without compression, found Content-Encoding: {encoding:.20}")
    task = served.model.task
    asked, texts = read_request(await request.body(), request.headers.get(_JSON_LENGTH))
    options = dict(asked.parameters)
    binary = options.pop("binary_data_output", False) is True
    for name in _SCHEDULING:
        options.pop(name, None)
    sent_binary = [
        _is_binary(item, task, binary) for item in asked.outputs or [RequestedOutput(name=_output_name(task))]
    ]
    output = _output(await served.results(_join(texts), request, options=options), task)
    answer = {"model_name": served.name, "model_version": _VERSION}
    if asked.id is not None:
        answer["id"] = asked.id
    body, json_length = write_response(answer, [(output, is_binary) for is_binary in sent_binary])
    if json_length is None:
        return Response(body, media_type="application/json")
    return Response(body, media_type="application/octet-stream", headers={_JSON_LENGTH: str(json_length)})


def _join(texts: dict[str, list[str]]) -> list[dict[str, str]]:
    """Return the inputs of a model from the texts of each tensor."""
    names = tuple(sorted(texts))
    if names not in (("text",), ("text", "text_pair"), ("context", "question")):
        raise InputError(
            f"expected the inputs text, or text and text_pair, or question and context, found {', '.join(names):.100}"
        )
    sizes = {len(values) for values in texts.values()}
    if len(sizes) > 1:
        raise InputError(f"expected inputs of one size, found {' and '.join(map(str, sorted(sizes)))} texts")
    return [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]


def _output_name(task: Task) -> str:
    return "embedding" if isinstance(task, SentenceEmbedding) else "answers"


def _is_binary(requested: RequestedOutput, task: Task, default: bool) -> bool:
    """Return whether a requested output goes as binary data; raise `InputError` where the model does not have it."""
    name = _output_name(task)
    if requested.name != name:
        raise InputError(f"expected the output {name}, found {requested.name!r:.50}")
    if unknown := sorted(set(requested.parameters) - {"binary_data"}):
        raise InputError(f"output {name}: expected no parameter but binary_data, found {', '.join(unknown):.100}")
    return requested.parameters.get("binary_data", default) is True


def _output(results: Sequence[Result], task: Task) -> OutputTensor:
    name = _output_name(task)
    if isinstance(task, SentenceEmbedding):
        vectors = [result.vector for result in results if isinstance(result, Embedding)]
        return OutputTensor(name, np.stack(vectors) if vectors else np.empty((0, task.dimensions), np.float32))
    values = (result.vectors if isinstance(result, TokenVectors) else result.to_dict() for result in results)
    return OutputTensor(name, [orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY) for value in values])
