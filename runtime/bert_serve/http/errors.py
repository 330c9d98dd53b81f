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
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from bert_runtime.errors import InputError
from bert_serve.errors import ClientGoneError, ServeError
from bert_serve.http.json_response import JSONResponse

__all__ = ["ErrorBody", "add_error_handlers", "internal_failure", "path_in_app", "refusal", "route_path"]

ErrorBody = Callable[[int, str], Any]
"""Return the JSON body of a failure from its HTTP status and message, in a format that clients know."""

_log = logging.getLogger("bert_serve")

_INTERNAL = "the server failed on this request; its log says why"


def _default_body(status: int, message: str) -> Any:
    return {"error": {"code": status, "message": message}}


def refusal(scope: Scope, status: int, message: str, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """Count a request that fails, and return its answer in the format of its path, also where no route was asked yet.

    Args:
        scope: the request.
        status: HTTP status.
        message: what went wrong.
        reason: its name for metrics.
        headers: further headers of the answer.
    """
    state = scope["app"].state
    state.metrics.rejected.labels(reason).inc()
    message = message.encode("utf-8", "backslashreplace").decode()  # names of a request may hold lone surrogates
    return JSONResponse(_body_format(scope, state.error_bodies)(status, message), status, headers)


def _body_format(scope: Scope, bodies: Mapping[str, ErrorBody]) -> ErrorBody:
    """Return the format of a path: of its route, or of the longest beginning that `bodies` has, such as `/v2/*`."""
    path = route_path(scope)
    if path not in bodies:
        beginnings = [name for name in bodies if name.endswith("*") and path_in_app(scope).startswith(name[:-1])]
        path = max(beginnings, key=len, default=path)
    return bodies.get(path, _default_body)


def add_error_handlers(app: FastAPI, bodies: Mapping[str, ErrorBody]) -> None:
    """Let an application answer errors in the format of the route.

    Args:
        app: the application.
        bodies: the format by the route's path, or by the beginning of other paths, such as `/v2/*`; the rest gets a
            plain one.
    """
    app.state.error_bodies = bodies

    async def answer(request: Request, error: Exception) -> Response:  # a plain function would run in a thread
        status, message, reason = _describe(error)
        retry_after_s = getattr(error, "retry_after_s", None)
        headers = dict(getattr(error, "headers", None) or {})
        if retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
        return refusal(request.scope, status, message, reason, headers)

    for kind in (ServeError, InputError, RequestValidationError, HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, answer)


def internal_failure(scope: Scope, request_id: str, error: Exception) -> Response:
    """Log an error that is none of the request, and return the answer that says so."""
    fields = {"request_id": request_id}
    _log.error("%s %s failed", scope["method"], route_path(scope), exc_info=error, extra={"fields": fields})
    return refusal(scope, 500, _INTERNAL, "internal")


def path_in_app(scope: Scope) -> str:
    """Return the path of a request without that at which the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def route_path(scope: Scope) -> str:
    """Return the path of a request's route, as it was declared, also where the request has not come to it."""
    route = scope.get("route")
    if route is None:
        matches = (route for route in scope["app"].router.routes if route.matches(scope)[0] != Match.NONE)
        route = next(matches, None)
    return getattr(route, "path", "other")


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
    if isinstance(error, ClientDisconnect):  # while its body was arriving
        return ClientGoneError.status, "the client has gone", ClientGoneError.reason
    raise AssertionError(f"no handler was added for {type(error).__name__}")


def _validation_problems(error: RequestValidationError) -> Iterator[str]:
    """Yield what is wrong with a body, and where; not what was found there, which may be a text."""
    for problem in error.errors()[:10]:
        if problem["type"] == "json_invalid" and problem["loc"]:  # of FastAPI
            yield f"expected JSON, found an error at character {problem['loc'][-1]}: {problem['ctx']['error']}"
            continue
        where = ".".join(str(part) for part in problem["loc"] if part != "body")
        yield f"{where}: {problem['msg']}" if where else str(problem["msg"])
