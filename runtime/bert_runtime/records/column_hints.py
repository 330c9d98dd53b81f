"""Suggestions for `--columns`: which column of a file might hold a field that it does not name."""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

__all__ = ["closest_name", "suggest_columns"]

_SYNONYMS = {
    "text": (
        "sentence", "sentence1", "utterance", "review", "comment", "message", "content", "document", "body", "input",
        "premise", "query", "tweet", "post", "string", "title", "question1",
    ),
    "text_pair": ("sentence2", "hypothesis", "passage", "answer", "second", "question2", "text2"),
    "label": ("category", "class", "intent", "sentiment", "target", "topic", "tag", "gold", "y", "output"),
    "labels": ("categories", "classes", "topics", "genres", "label_list"),
    "score": ("similarity", "rating", "value", "stars", "grade", "relatedness"),
    "tokens": ("words", "forms", "sentence"),
    "tags": ("ner_tags", "ner", "pos_tags", "pos", "upos", "entities"),
    "question": ("query", "q"),
    "context": ("passage", "paragraph", "document", "article"),
    "answers": ("answer",),
}  # fmt: skip
"""Common names in public data sets, the likelier first, by field."""

_MIN_SIMILARITY = 0.75
"""Minimum similarity (Ratcliff and Obershelp) of a name to a field or one of its synonyms."""


def suggest_columns(missing: Iterable[str], names: Sequence[str]) -> str:
    """Return `--columns` with the closest of a file's columns for each missing field; empty if none is close.

    Args:
        missing: fields that the file does not name.
        names: the file's columns; those that are fields themselves are not suggested.
    """
    free = [name for name in names if name not in _SYNONYMS]
    pairs = []
    for field in missing:
        if (name := closest_name((field, *_SYNONYMS.get(field, ())), free)) is not None:
            free.remove(name)
            pairs.append(f"{field}={name}")
    return f"--columns {','.join(pairs)}" if pairs else ""


def closest_name(wanted: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the one of `names` that is most like one of `wanted`, in case of a tie like an earlier one."""
    ranked = [
        (SequenceMatcher(None, one.lower(), name.lower()).ratio(), -rank, name)
        for rank, one in enumerate(wanted)
        for name in names
    ]
    similarity, _, name = max(ranked, default=(0.0, 0, ""))
    return name if similarity >= _MIN_SIMILARITY else None
