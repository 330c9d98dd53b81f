"""Inputs as embedding clients write them: texts, or token ids of the model's own vocabulary."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from bert_runtime.errors import InputError
from bert_runtime.tasks import Outputs
from bert_serve.errors import EmptyRequestError
from bert_serve.serving.caller import Caller
from bert_serve.serving.engine import Engine

__all__ = ["TextList", "TextsOrIds", "TokenIdList", "run_texts_or_ids"]

TextList = Annotated[list[str], Field(fail_fast=True)]
"""Texts. The first item that is none ends the validation: a body may have millions."""

TokenIdList = Annotated[list[Annotated[int, Field(strict=True)]], Field(fail_fast=True)]
"""Token ids; the first item that is none ends the validation."""


def _kind(value: object) -> str | None:
    """Return which of the kinds of `TextsOrIds` a JSON value is meant to be, by its first item."""
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    if isinstance(first, list):
        return "ids of several"
    return "texts" if isinstance(first, str) else "ids"


TextsOrIds = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[TextList, Tag("texts")]
    | Annotated[TokenIdList, Tag("ids")]
    | Annotated[list[TokenIdList], Field(fail_fast=True), Tag("ids of several")],
    Discriminator(
        _kind,
        custom_error_type="inputs",
        custom_error_message="expected a text, a list of texts, a list of token ids, or a list of lists of them",
    ),
]
"""One text, several, one sequence of token ids, or several.

The first item tells which, so that an error names the item that does not fit."""


async def run_texts_or_ids(
    engine: Engine,
    value: Any,
    caller: Caller | None = None,
    *,
    truncate: bool = True,
    options: Mapping[str, Any] | None = None,
) -> list[Outputs]:
    """Return the raw outputs of texts, or of token ids as they are.

    Args:
        engine: the engine of the model.
        value: a validated `TextsOrIds`.
        caller: the request, whose connection is watched.
        truncate: whether what exceeds the model's maximum may be cut off.
        options: options of the task, see `Engine.run`; a prompt is for texts alone.

    Raises:
        EmptyRequestError: there is no input at all.
        InputError: names an input that cannot be processed, or a prompt is asked for in front of token ids.
        ServeError: the request cannot be answered now, or exceeds a limit; see `Engine.run`.
    """
    values: list[Any] = [value] if isinstance(value, str) else value
    if not values:
        raise EmptyRequestError("expected at least one text, found an empty list")
    if isinstance(values[0], str):
        return await engine.run(values, caller, truncate=truncate, options=options)
    if options and "prompt_name" in options:
        raise InputError("prompt_name: expected texts, in front of which a prompt is put, found token ids")
    encoded = engine.encode_ids([values] if isinstance(values[0], int) else values)
    return await engine.outputs(encoded, caller)
