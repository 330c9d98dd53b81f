"""The page's routes: its files, and the requests that its scripts make.

These are not a public interface; programs use the formats in `bert_serve.http`.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from bert_runtime.batching.streaming import EncodedInput
from bert_runtime.errors import InputError
from bert_runtime.tasks import FillMask, Task
from bert_serve.http.json_response import JSONResponse
from bert_serve.page.attention import display_attention
from bert_serve.page.display import display_options
from bert_serve.page.models import PageModels, precisions
from bert_serve.page.predictions import check_size, predict
from bert_serve.page.static_files import StaticFile, StaticFiles
from bert_serve.serving.engine import Engine
from bert_serve.serving.served_model import ServedModel

__all__ = ["add_page"]

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

_router = APIRouter(include_in_schema=False)


def add_page(app: FastAPI, paths: Iterable[str]) -> None:
    """Add the page to an application.

    Args:
        app: the application, whose state has `settings` and `models`.
        paths: paths of the formats that it speaks, of which the page shows requests.
    """
    app.state.page_paths = sorted(paths)
    app.state.page_files = StaticFiles()
    app.state.page_models = PageModels(app.state.settings)
    app.include_router(_router)


@_router.get("/")
async def index(request: Request) -> Response:
    """Return the page; a browser asks each time whether it has changed."""
    files: StaticFiles = request.app.state.page_files
    tag = f'"{files.digest}"'
    headers = {"Cache-Control": "no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return _response(files.index, headers)


@_router.get("/static/{digest}/{path:path}")
async def static(request: Request, digest: str, path: str) -> Response:
    """Return a file of the page, which a browser may keep."""
    file = request.app.state.page_files.get(digest, path)
    if file is None:
        raise HTTPException(404, "no such file in this version of the page; reload it")
    return _response(file, {"Cache-Control": "public, max-age=31536000, immutable"})


def _response(file: StaticFile, headers: dict[str, str]) -> Response:
    return Response(file.content, media_type=file.media_type, headers=_HEADERS | headers)


@_router.get("/page/models")
async def models(request: Request) -> Response:
    """Return the served models, and the paths of the formats that the server speaks."""
    state = request.app.state
    content = {
        "models": [_describe(served) for served in state.models.values()],
        "paths": state.page_paths,
        "needs_key": bool(state.settings.api_keys),
    }
    return JSONResponse(content, headers={"Cache-Control": "no-store"})


def _describe(served: ServedModel) -> dict[str, Any]:
    if not served.ready:
        return {"name": served.name, "ready": False}
    model = served.model
    task: Task = model.task
    return {
        "name": served.name,
        "ready": True,
        "task": task.name,
        "precisions": precisions(model),
        "device": "cpu" if model.variant is None else model.variant.target,
        "max_tokens": model.tokenizer.max_tokens,
        "output_width": task.output_width,
        "attention": model.manifest is not None and model.manifest.attention is not None,
        "mask_token": task.mask_token if isinstance(task, FillMask) else None,
    }


class _Input(BaseModel):
    """A text, or a pair of texts."""

    model_config = ConfigDict(extra="forbid")

    text: str
    text_pair: str | None = None


class _Prediction(BaseModel):
    """A request of the page."""

    model_config = ConfigDict(extra="forbid")

    model: str
    precision: str
    inputs: Annotated[list[_Input], Field(min_length=1)]


@_router.post("/page/predict")
async def predictions(request: Request, body: _Prediction) -> Response:
    """Return the results of one precision of a model, with tokens and times."""
    state = request.app.state
    served: ServedModel = state.models.resolve(body.model)
    inputs = [value.model_dump(exclude_none=True) for value in body.inputs]
    check_size(inputs, state.settings.engine.max_texts)
    engine = served.engine  # one engine throughout, also if the bundle is replaced meanwhile
    start = time.perf_counter()
    encoded = await _encode(engine, inputs)
    tokenize_ms = (time.perf_counter() - start) * 1e3
    work = partial(predict, encoded=encoded, options=display_options(engine.model.task), tokenize_ms=tokenize_ms)
    return JSONResponse(await state.page_models.run(served, engine.model, body.precision, work))


async def _encode(engine: Engine, inputs: Sequence[Mapping[str, str]]) -> list[EncodedInput]:
    """Tokenize inputs one by one: many at once would lack what the page shows of each token."""
    encoded: list[EncodedInput] = []
    for index, value in enumerate(inputs):
        try:
            encoded += await engine.encode([value])
        except InputError as error:  # the number of an only input says nothing
            raise InputError(error.reason, index if len(inputs) > 1 else None) from None
    return encoded


class _AttentionRequest(BaseModel):
    """A text or a pair of texts, whose attention the page draws."""

    model_config = ConfigDict(extra="forbid")

    model: str
    input: _Input


@_router.post("/page/attention")
async def attention(request: Request, body: _AttentionRequest) -> Response:
    """Return the attention probabilities of all layers and heads."""
    state = request.app.state
    served: ServedModel = state.models.resolve(body.model)
    value = body.input.model_dump(exclude_none=True)
    check_size([value])
    return JSONResponse(await state.page_models.run_attention(served, partial(display_attention, value=value)))
