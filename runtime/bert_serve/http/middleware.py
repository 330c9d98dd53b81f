"""Middleware of every request: an id, a key, a limit, a line in the log.

    Starlette's CORSMiddleware, with --cors-origin ─▶ RequestLog ─▶ ApiKeys ─▶ BodyLimit ─▶ routes

Plain ASGI: classes that wrap an application. Starlette's base class for middleware would cost a task for each request.
"""

import asyncio
import hmac
import logging
import random
import re
import time
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bert_serve.http.errors import internal_failure, path_in_app, refusal, route_path
from bert_serve.metrics import Metrics

__all__ = ["ApiKeys", "BodyLimit", "RequestLog"]

_log = logging.getLogger("bert_serve.requests")

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}")
"""Ids of clients that are taken over; others could forge lines of a log."""

_PUBLIC_PATHS = {"/", "/health", "/live", "/metrics", "/v2/health/live", "/v2/health/ready", "/openapi.json"}
"""Paths that need no key: probes, metrics, the page itself. Files of the page start with `_PUBLIC_PREFIX`."""

_PUBLIC_PREFIX = "/static/"


class RequestLog:
    """Gives each request an id, counts it, and logs one line when it is answered.

    Args:
        app: the application inside.
        metrics: where requests are counted.
        log_texts: whether the log holds bodies.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, *, log_texts: bool = False) -> None:
        self._app = app
        self._metrics = metrics
        self._log_texts = log_texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, body = time.perf_counter(), 0, bytearray()
        asked = Headers(scope=scope).get("x-request-id", "")
        request_id = asked if _REQUEST_ID.fullmatch(asked) else f"{random.getrandbits(128):032x}"

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        async def receive_and_keep() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        try:
            await self._app(scope, receive_and_keep if self._log_texts else receive, send_with_id)
        except asyncio.CancelledError:  # the server ends and waits no longer; without an answer, uvicorn sends 500
            if status:
                raise
            message = "the server is ending; try again"
            await refusal(scope, 503, message, "shutdown", {"Retry-After": "1"})(scope, receive, send_with_id)
        except Exception as error:  # within Starlette's own handler, whose answer would have no id
            if status:
                raise
            await internal_failure(scope, request_id, error)(scope, receive, send_with_id)
        finally:
            self._report(scope, request_id, status or 500, time.perf_counter() - start, bytes(body))

    def _report(self, scope: Scope, request_id: str, status: int, seconds: float, body: bytes) -> None:
        route = route_path(scope)
        self._metrics.requests.labels(route, status).inc()
        self._metrics.request_s.labels(route).observe(seconds)
        if _log.isEnabledFor(logging.INFO):
            fields = {
                "request_id": request_id,
                "method": scope["method"],
                "route": route,
                "status": status,
                "milliseconds": round(seconds * 1e3, 3),
            }
            if self._log_texts:
                fields["body"] = body.decode("utf-8", "replace")
            _log.info("request", extra={"fields": fields})


class ApiKeys:
    """Refuses requests without one of the server's keys, but not probes, metrics and the page.

    Args:
        app: the application inside.
        keys: the keys; none is needed where there are none.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and not self._admits(scope):
            message = "expected the header Authorization: Bearer KEY with a key of this server"
            headers = {"WWW-Authenticate": "Bearer"}
            await refusal(scope, 401, message, "http_401", headers)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        path, method = path_in_app(scope), scope["method"]
        is_public = path in _PUBLIC_PATHS or path.startswith(_PUBLIC_PREFIX)
        if method == "OPTIONS" or (is_public and method in ("GET", "HEAD")):  # a POST to `/` is inference
            return True
        kind, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        found = key.strip().encode()
        matches = [hmac.compare_digest(found, expected) for expected in self._keys]  # all of them, in constant time
        return kind.lower() == "bearer" and any(matches)


_LARGEST_BODIES = 32
"""Bodies of the largest size that a process holds at a time (a judgement): 320 MB of 10 MB each, or as many bytes of
smaller ones."""


_STALLED_S = 30.0
"""Seconds without any byte of a body after which its request is refused. A judgement."""


class BodyLimit:
    """Refuses bodies that are too large, by their declared size or else as they arrive, too many at a time, or stalled.

    Args:
        app: the application inside.
        max_bytes: largest body.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._held_bytes = 0
        """Bytes of the bodies of all requests that are not answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await refusal(scope, 413, self._message(f"{int(declared):,}"), "http_413")(scope, receive, send)
            return
        num_bytes, is_complete = 0, False

        async def receive_limited() -> Message:
            nonlocal num_bytes, is_complete
            try:
                async with asyncio.timeout(None if is_complete else _STALLED_S):  # then it tells who left
                    message = await receive()
            except TimeoutError:
                found = f"expected bytes of the body within {_STALLED_S:.0f} s, found none"
                raise HTTPException(408, found, {"Connection": "close"}) from None
            is_complete = not message.get("more_body", False)
            size = len(message.get("body", b""))
            num_bytes += size
            self._held_bytes += size
            if num_bytes > self._max_bytes:
                raise HTTPException(413, self._message("more"))
            if self._held_bytes > (limit := _LARGEST_BODIES * self._max_bytes):
                raise HTTPException(429, f"requests of {limit:,} bytes are in flight; try again", {"Retry-After": "1"})
            return message

        try:
            await self._app(scope, receive_limited, send)
        finally:
            self._held_bytes -= num_bytes

    def _message(self, found: str) -> str:
        return f"expected a body of at most {self._max_bytes:,} bytes, found {found}"
