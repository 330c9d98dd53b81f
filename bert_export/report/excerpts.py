"""Excerpts of texts that are too long for a table."""

from dataclasses import dataclass

__all__ = ["Excerpt", "excerpt"]

_MAX_CHARS = 320
"""Characters of an excerpt, about four lines of a table."""


@dataclass(frozen=True)
class Excerpt:
    """A text in three parts; the middle one is what a decision is about, empty where that is all of it."""

    before: str
    focus: str
    after: str


def excerpt(text: str, span: tuple[int, int] | None = None) -> Excerpt:
    """Return a text, or as much of it around the span as a table has room for.

    Lone surrogates, which UTF-8 cannot encode, become `?`.

    Args:
        text: the text.
        span: first character, and the one after the last, of the part to point out.
    """
    if span is None:
        return Excerpt(_encodable(text[:_MAX_CHARS] + ("…" if len(text) > _MAX_CHARS else "")), "", "")
    start, end = span
    room = max(0, _MAX_CHARS - (end - start))
    first = max(0, min(start - room // 2, len(text) - (end - start) - room))
    last = min(len(text), end + room - (start - first))
    return Excerpt(
        before=_encodable(("…" if first else "") + text[first:start]),
        focus=_encodable(text[start : min(end, start + _MAX_CHARS)]),
        after=_encodable(text[end:last] + ("…" if last < len(text) else "")),
    )


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
