"""Serve a classifier over HTTP, with limits, a health check and errors that clients can act on.

Install:  pip install fastapi uvicorn
Run:      BUNDLE=intents-bundle THREADS=2 uvicorn fastapi_app:app --workers 2
Ask:      curl localhost:8000/classify --json '{"texts": ["I lost my card"]}'

FastAPI runs plain functions in threads, from which the model may be called. THREADS is a worker's share of the cores.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from bert_runtime import InputError, load


class ClassifyRequest(BaseModel):
    texts: list[Annotated[str, Field(max_length=20_000)]] = Field(min_length=1, max_length=64)


class Prediction(BaseModel):
    label: str
    score: float
    truncated: bool  # the model has not read all of the text


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the bundle in the worker process that uses it: a loaded model does not survive a fork."""
    app.state.model = load(os.environ["BUNDLE"], threads=int(os.environ.get("THREADS", 0)) or None)
    app.state.model("The first call is slower than those that follow.")
    yield


app = FastAPI(title="Classifier", lifespan=lifespan)


@app.exception_handler(InputError)
@app.exception_handler(RequestValidationError)
def refuse(request: Request, error: Exception) -> JSONResponse:
    """Name what is wrong, but do not repeat the text: it may be long, personal, or no valid Unicode."""
    found = error.errors() if isinstance(error, RequestValidationError) else [{"loc": (), "msg": str(error)}]
    return JSONResponse({"detail": [{"loc": problem["loc"], "msg": problem["msg"]} for problem in found]}, 422)


@app.get("/health")
def health(request: Request) -> dict[str, str]:
    return {"model": repr(request.app.state.model)}


@app.post("/classify")
def classify(body: ClassifyRequest, request: Request) -> list[Prediction]:
    results = request.app.state.model(body.texts)
    return [Prediction(label=result.label, score=result.score, truncated=result.truncated) for result in results]
