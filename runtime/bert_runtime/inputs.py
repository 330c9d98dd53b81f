"""Inputs as callers pass them: texts and pairs of texts, one or several, and failures of single ones."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from bert_runtime.errors import InputError
from bert_runtime.tasks import TextInput

__all__ = [
    "Column",
    "InputFailure",
    "OnError",
    "SingleInput",
    "as_text_input",
    "check_column",
    "check_on_error",
    "named_input",
    "texts_of",
]

SingleInput = str | tuple[str, str] | TextInput | Mapping[str, object]
"""One input of a model: a text, a pair of texts, or a dict with `text` and `text_pair`, or `question` and `context`.

A dict may have other keys, such as a label, which are ignored.
"""


def texts_of(value: object) -> Iterator[str]:
    """Yield the texts of one input; none of what is no input."""
    parts: Iterable[object] = value.values() if isinstance(value, Mapping) else ()
    if isinstance(value, str):
        parts = (value,)
    elif isinstance(value, tuple | list):
        parts = value
    yield from (part for part in parts if isinstance(part, str))


class Column(Protocol):
    """Texts that are no `list`: a Series of pandas, an array of NumPy, an Array or a ChunkedArray of Arrow, …"""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


OnError = Literal["raise", "skip", "return"]
"""The treatment of an input that cannot be processed.

`raise`: an `InputError`, after the results of the inputs before it. `skip`: it has no result. `return`: an
`InputFailure` in the place of its result.
"""

_ON_ERROR = ("raise", "skip", "return")

_TEXT_NAMES = frozenset(("text", "text_pair", "pair", "question", "context"))
"""Names that callers give texts in a dict. One that is not read is an error: its text would be ignored silently."""


@dataclass(frozen=True, slots=True)
class InputFailure:
    """Stands for the result of an input that cannot be processed, with `on_error="return"`.

    As JSON: `{"error": "expected a text, …, found None"}`.
    """

    index: int
    """Number of the input, from 0."""
    error: str
    """Why it cannot be processed."""

    def to_dict(self) -> dict[str, Any]:
        """Return the failure as a JSON object, which no result equals."""
        return {"error": self.error}

    def summary(self) -> str:
        """Return the failure as one line of text."""
        return f"error\t{self.error}"


def check_on_error(on_error: str) -> None:
    """Raise `InputError` unless `on_error` is one of `OnError`."""
    if on_error not in _ON_ERROR:
        raise InputError(f"expected on_error to be {', '.join(_ON_ERROR)}, found {on_error!r}")


def check_column(inputs: object) -> None:
    """Raise `InputError` unless `inputs` is a list or anything else that has a length, an order and one dimension."""
    ordered = hasattr(inputs, "__len__") and hasattr(inputs, "__iter__") and not isinstance(inputs, bytes | bytearray)
    if not ordered or isinstance(inputs, set | frozenset | str | tuple | Mapping):
        raise InputError(
            f"expected a text or a list of texts, found {type(inputs).__name__}; for an iterator use model.stream"
        )
    if (dimensions := getattr(inputs, "ndim", 1)) != 1:
        raise InputError(
            f"expected a text or a list of texts, found {type(inputs).__name__} of {dimensions} dimensions; "
            "give one column of it"
        )


def named_input(inputs: object, fields: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """Return one input that was given by name; raise `InputError` where `inputs` was given, too, or for other names."""
    if inputs is not None:
        raise InputError("give an input either by position or by name, not both")
    if unknown := sorted(set(fields) - {"text", "text_pair", "question", "context"}):
        raise InputError(f"expected text and text_pair, or question and context, found {', '.join(unknown)}")
    return fields


def as_text_input(value: object) -> TextInput:
    """Convert what a caller passed as one input, see `SingleInput`; raise `InputError` for anything else."""
    if isinstance(value, str):
        return TextInput(value)
    if isinstance(value, TextInput) and isinstance(value.text, str) and isinstance(value.text_pair, str | None):
        return value
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(text, str) for text in value):
        return TextInput(*value)
    if isinstance(value, Mapping):
        names = ("question", "context") if "question" in value else ("text", "text_pair")
        text, pair = (value.get(name) for name in names)
        if isinstance(text, str) and isinstance(pair, str | None):
            if unread := sorted((_TEXT_NAMES - set(names)) & value.keys()):  # a label or a number does no harm
                raise InputError(f"expected texts called {' and '.join(names)}, found also {', '.join(unread)}")
            return TextInput(text, pair)
    if hasattr(value, "as_py"):  # an Arrow scalar
        return as_text_input(value.as_py())
    raise InputError(
        "expected a text, a tuple of two texts, or a dict with 'text' and optionally 'text_pair', "
        f"or with 'question' and 'context'; found {_describe(value)}"
    )


def _describe(value: object) -> str:
    """Describe a value that is not an input; tables mark a missing text by a float (NaN), `<NA>` or `None`."""
    if value is None:
        return "None"
    if _is_missing(value):
        return f"a missing value ({_missing_name(value)}); leave it out, or fill it with an empty text"
    found = f"{type(value).__name__}: {value!r:.60}"
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
    missing = next(filter(_is_missing, parts), None)
    return found if missing is None else f"{found}, with a missing value ({_missing_name(missing)})"


def _is_missing(value: object) -> bool:
    """Return whether a value is NaN, or one of the missing values of pandas, which is not imported."""
    return type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def _missing_name(value: object) -> str:
    return "NaN" if isinstance(value, float) else str(value)
