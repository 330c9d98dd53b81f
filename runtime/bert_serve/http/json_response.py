"""JSON answers, NumPy arrays included."""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
from starlette.responses import Response

__all__ = ["JSONResponse", "example_answer", "json_list"]

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class JSONResponse(Response):
    """A response whose content is JSON: arrays of NumPy become lists, without a Python object for each number."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=_OPTIONS)


async def json_list(items: Sequence[Any]) -> Response:
    """Return a response whose content is a list of large items; other requests have their turns between these."""
    written = []
    for item in items:
        written.append(orjson.dumps(item, option=_OPTIONS))
        await asyncio.sleep(0)
    return Response(b"[" + b",".join(written) + b"]", media_type=JSONResponse.media_type)


def example_answer(value: Any) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of a route's answer, by an example."""
    return {200: {"content": {"application/json": {"example": value}}}}
