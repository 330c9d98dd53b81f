"""A FastAPI route that reads a JSON body with less work per request."""

from collections.abc import Callable, Coroutine
from inspect import signature
from typing import Any, get_type_hints

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

__all__ = ["JSONRoute"]


class JSONRoute(APIRoute):
    """Calls `endpoint(body, request)`, or `endpoint(body, request, name)` with the query parameter `model`.

    The body is validated from its bytes, without FastAPI's resolution of dependencies, of which these routes have none.
    The OpenAPI document is FastAPI's. Routes without a parameter `body` are FastAPI's own.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        parameters, endpoint = list(signature(self.endpoint).parameters), self.endpoint
        if parameters[:1] != ["body"]:
            return super().get_route_handler()
        if parameters not in (["body", "request"], ["body", "request", "name"]):
            raise TypeError(f"expected an endpoint of body, request and perhaps name, found {', '.join(parameters)}")
        adapter = TypeAdapter(get_type_hints(self.endpoint)["body"])
        takes_name = len(parameters) == 3

        async def answer(request: Request) -> Response:
            _check_content_type(request)
            try:
                body = adapter.validate_json(await request.body())
            except ValidationError as error:
                raise RequestValidationError(error.errors(include_url=False, include_input=False)) from None
            if takes_name:
                response: Response = await endpoint(body, request, request.query_params.get("model"))
            else:
                response = await endpoint(body, request)
            return response

        return answer


def _check_content_type(request: Request) -> None:
    """Refuse bodies that a foreign page could send from a browser without asking: those that are not declared as JSON.

    Raises:
        HTTPException: 415.
    """
    declared = request.headers.get("content-type", "")
    media_type = declared.partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise HTTPException(415, f"expected the header Content-Type: application/json, found {declared[:100]!r}")
