"""OpenAI's embeddings and list of models."""

from base64 import b64encode
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StrictInt
from starlette.requests import Request
from starlette.responses import Response

from bert_serve.errors import ModelNotFoundError
from bert_serve.http.json_response import JSONResponse
from bert_serve.http.json_route import JSONRoute
from bert_serve.http.text_inputs import TextsOrIds
from bert_serve.http.vectors import embed
from bert_serve.serving.served_model import ServedModel

__all__ = ["error_body", "router"]

_ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class ErrorDetail(BaseModel):
    """Message, type, parameter and code of an error."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAIError(BaseModel):
    """An error as OpenAI's clients read it."""

    error: ErrorDetail


class EmbeddingsRequest(BaseModel):
    """Texts, or token ids of the model's own vocabulary, to be embedded."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "minilm", "input": ["I lost my card", "hello"]}]}
    )

    input: TextsOrIds
    model: str | None = Field(None, description="Name of the model; with a single one, any name means it.")
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="Numbers, or their little-endian bytes as base64: float32, or what output_dtype says."
    )
    dimensions: StrictInt | None = Field(None, description="How many first dimensions to keep (Matryoshka models).")
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = Field(
        "float", description="Dtype of the vectors; `binary` and `ubinary` hold eight dimensions in a byte."
    )
    prompt_name: str | None = Field(
        None, description="Name of the bundle's prompt that is put in front of each text; by default the bundle's."
    )
    user: str | None = Field(None, description="Ignored.")


class EmbeddingItem(BaseModel):
    """The embedding of one input."""

    object: Literal["embedding"]
    index: int
    embedding: list[int] | list[float] | str


class Usage(BaseModel):
    """Tokens that the model read, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """Embeddings in the order of the inputs."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [{"object": "embedding", "index": 0, "embedding": [0.031, -0.046, 0.007]}],
                    "model": "minilm",
                    "usage": {"prompt_tokens": 6, "total_tokens": 6},
                }
            ]
        }
    )

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: Usage


_CARD: Any = {"id": "minilm", "object": "model", "created": 1735689600, "owned_by": "bert-export"}


class ModelCard(BaseModel):
    """A model that is served."""

    model_config = ConfigDict(json_schema_extra={"examples": [_CARD]})

    id: str
    object: Literal["model"]
    created: int = Field(description="When its bundle was written, in seconds since 1970.")
    owned_by: str


class ModelList(BaseModel):
    """All models that are served."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"object": "list", "data": [_CARD]}]})

    object: Literal["list"]
    data: list[ModelCard]


router = APIRouter(
    route_class=JSONRoute,
    tags=["OpenAI"],
    responses={"4XX": {"model": OpenAIError, "description": "The request failed"}},
)


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return a failure as OpenAI's clients read it."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = "model_not_found" if status == ModelNotFoundError.status else None
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


@router.post("/v1/embeddings", summary="Embeddings of texts or token ids", response_model=EmbeddingsResponse)
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """Return a vector for each input, in order."""
    served = request.app.state.models.resolve(body.model)
    vectors, num_tokens = await embed(
        served,
        body.input,
        request,
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
        embedding_precision=None if body.output_dtype in (None, "float") else body.output_dtype,
    )
    items: list[Any] = list(vectors)
    if body.encoding_format == "base64":
        items = [b64encode(vector).decode() for vector in vectors.astype(vectors.dtype.newbyteorder("<"), copy=False)]
    data = [{"object": "embedding", "index": index, "embedding": item} for index, item in enumerate(items)]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return JSONResponse({"object": "list", "data": data, "model": served.name, "usage": usage})


@router.get("/v1/models", summary="The models that are served", response_model=ModelList)
async def list_models(request: Request) -> Response:
    """Return all models."""
    models = request.app.state.models.values()
    return JSONResponse({"object": "list", "data": list(map(_model_card, models))})


@router.get("/v1/models/{name:path}", summary="A model that is served", response_model=ModelCard)
async def get_model(name: str, request: Request) -> Response:
    """Return the model of a name."""
    return JSONResponse(_model_card(request.app.state.models.resolve(name)))


def _model_card(served: ServedModel) -> dict[str, Any]:
    return {"id": served.name, "object": "model", "created": served.created_s, "owned_by": "bert-export"}
