"""Inputs that several tasks make alike of rows and of plain texts."""

from collections.abc import Sequence

from bert_runtime.records import Record
from bert_runtime.tasks.values import TextInput

__all__ = ["pair_with_next", "separate_texts"]


def separate_texts(record: Record) -> tuple[TextInput, ...]:
    """Return the text of a row, or its two texts as separate inputs."""
    second = record.optional_text("text_pair")
    return (TextInput(record.text()), *([] if second is None else [TextInput(second)]))


def pair_with_next(texts: Sequence[str]) -> list[TextInput]:
    """Pair each text with the next one, and the last with the first."""
    return [TextInput(text, texts[(i + 1) % len(texts)]) for i, text in enumerate(texts)]
