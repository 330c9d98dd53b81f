"""JSON answers, NumPy arrays included."""

from typing import Any

import orjson
from starlette.responses import Response

__all__ = ["JSONResponse", "example_answer"]


class JSONResponse(Response):
    """A response whose content is JSON: arrays of NumPy become lists, without a Python object for each number."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def example_answer(value: Any) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of a route's answer, by an example."""
    return {200: {"content": {"application/json": {"example": value}}}}
