"""Check the declared content type of a request's body.

A page of another origin can have a browser post to a server without asking it (CORS' simple requests), but only texts,
forms, and bodies that are declared as nothing. These are refused.
"""

from starlette.exceptions import HTTPException
from starlette.requests import Request

__all__ = ["check_json", "check_json_or_binary"]


def check_json(request: Request) -> None:
    """Raise `HTTPException` 415 unless a body is declared as JSON."""
    if not _is_json(_media_type(request)):
        raise _refusal(request, "application/json")


def check_json_or_binary(request: Request) -> None:
    """Raise `HTTPException` 415 unless a body is declared as JSON or binary data, or a program declares nothing.

    NVIDIA's client declares nothing. Browsers then say of which origin the page is.
    """
    media_type = _media_type(request)
    declares_nothing = not media_type and "origin" not in request.headers
    if not (declares_nothing or media_type == "application/octet-stream" or _is_json(media_type)):
        raise _refusal(request, "application/json or application/octet-stream")


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_json(media_type: str) -> bool:
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def _refusal(request: Request, expected: str) -> HTTPException:
    found = request.headers.get("content-type", "")
    return HTTPException(415, f"expected the header Content-Type: {expected}, found {found[:100]!r}")
