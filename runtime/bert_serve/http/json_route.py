"""A FastAPI route that reads a JSON body with less work per request."""

import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from inspect import signature
from typing import Any, get_type_hints

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from bert_serve.http.content_type import check_json

__all__ = ["JSONRoute"]


class JSONRoute(APIRoute):
    """Calls `endpoint(body, request, …)`: further parameters are those of the path, or `name`, the query's `model`.

    The body is validated from its bytes, without FastAPI's resolution of dependencies, of which these routes have none.
    The OpenAPI document is FastAPI's. Routes without a parameter `body` are FastAPI's own.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        parameters, endpoint = list(signature(self.endpoint).parameters), self.endpoint
        if parameters[:1] != ["body"]:
            return super().get_route_handler()
        of_path = [name for name in parameters[2:] if name in self.param_convertors]
        if parameters[:2] != ["body", "request"] or parameters[2:] not in (of_path, ["name"]):
            raise TypeError(
                "expected an endpoint of body, request and perhaps name or the path's parameters, "
                f"found {', '.join(parameters)}"
            )
        adapter = TypeAdapter(get_type_hints(self.endpoint)["body"])
        takes_query = parameters[2:] != of_path

        async def answer(request: Request) -> Response:
            check_json(request)
            try:
                body = _validate(adapter, await request.body())
            except ValidationError as error:
                raise RequestValidationError(error.errors(include_url=False, include_input=False)) from None
            further = [request.path_params[name] for name in of_path]
            if takes_query:
                further = [request.query_params.get("model")]
            response: Response = await endpoint(body, request, *further)
            return response

        return answer


def _validate(adapter: TypeAdapter[Any], content: bytes) -> Any:
    """Validate a body; raise `ValidationError`.

    Lone surrogates are let through where they are escaped: the runtime names the text and the place, which the parser
    of pydantic does not.
    """
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        if error.errors(include_input=False)[0]["type"] == "json_invalid" and b"\\ud" in content.lower():
            with suppress(ValueError, RecursionError):
                return adapter.validate_python(json.loads(content))
        raise
