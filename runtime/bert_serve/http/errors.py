"""Errors as HTTP answers: a status, and a body in the format of the route that failed.

Messages of the project's errors about a request go to its client. Of other errors the client learns that there was one;
the log has the rest.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from bert_runtime.errors import InputError
from bert_serve.errors import ServeError
from bert_serve.http.json_response import JSONResponse
from bert_serve.metrics import Metrics

__all__ = ["ErrorBody", "add_error_handlers", "error_response"]

ErrorBody = Callable[[int, str], Any]
"""Return the JSON body of a failure from its HTTP status and message, in a format that clients know."""

_log = logging.getLogger("bert_serve")

_INTERNAL = "the server failed on this request; its log says why"


def _default_body(status: int, message: str) -> Any:
    return {"error": {"code": status, "message": message}}


def error_response(
    status: int, message: str, body: ErrorBody = _default_body, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a failure as a response."""
    return JSONResponse(body(status, message), status, headers)


def add_error_handlers(app: FastAPI, bodies: Mapping[str, ErrorBody], metrics: Metrics) -> None:
    """Let an application answer errors in the format of the route.

    Args:
        app: the application.
        bodies: the format by the route's path; others get a plain one.
        metrics: where refused requests are counted.
    """

    async def answer(request: Request, error: Exception) -> Response:  # a plain function would run in a thread
        status, message, reason = _describe(error)
        if status == 500:
            _log.error("%s %s failed", request.method, _route_path(request), exc_info=error)
        metrics.rejected.labels(reason).inc()
        retry_after_s = getattr(error, "retry_after_s", None)
        headers = {} if retry_after_s is None else {"Retry-After": str(max(1, math.ceil(retry_after_s)))}
        return error_response(status, message, bodies.get(_route_path(request), _default_body), headers)

    for kind in (ServeError, InputError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _route_path(request: Request) -> str:
    return getattr(request.scope.get("route"), "path", "other")


def _describe(error: Exception) -> tuple[int, str, str]:
    """Return HTTP status, message and the reason's name for metrics."""
    if isinstance(error, ServeError):
        return error.status, str(error), error.reason
    if isinstance(error, InputError):
        return 422, str(error), "invalid_input"
    if isinstance(error, RequestValidationError):
        return 422, "; ".join(_validation_problems(error)), "invalid_request"
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail), f"http_{error.status_code}"
    return 500, _INTERNAL, "internal"


def _validation_problems(error: RequestValidationError) -> Iterator[str]:
    """Yield what is wrong with a body, and where; not what was found there, which may be a text."""
    for problem in error.errors()[:10]:
        if problem["type"] == "json_invalid" and problem["loc"]:  # of FastAPI
            yield f"expected JSON, found an error at character {problem['loc'][-1]}: {problem['ctx']['error']}"
            continue
        where = ".".join(str(part) for part in problem["loc"] if part != "body")
        yield f"{where}: {problem['msg']}" if where else str(problem["msg"])
