"""Gold answers to a question: spans of a context."""

from typing import Any

from bert_runtime.errors import DataError

__all__ = ["parse_answers"]


def parse_answers(value: object, context: str, where: str) -> list[tuple[str, int]]:
    """Read gold answers, and check them against the context.

    Args:
        value: a list of `{"text": ..., "answer_start": ...}` as in SQuAD, or a dict of two lists
            `{"text": [...], "answer_start": [...]}` as in Hugging Face datasets.
        context: the text that contains the answers.
        where: prefix of error messages.

    Returns:
        Text and index of the first character of each answer.

    Raises:
        DataError: `value` has another shape, or the context does not contain an answer at its index.
    """
    if isinstance(value, dict):
        value = _transpose(value, where)
    if not isinstance(value, list):
        raise DataError(f"{where}: expected a list of answers, found {type(value).__name__}")
    return [_parse_answer(answer, context, f"{where}[{number}]") for number, answer in enumerate(value)]


def _transpose(columns: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Convert a dict of lists to a list of dicts."""
    texts, starts = columns.get("text"), columns.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list):
        raise DataError(f"{where}: expected the lists 'text' and 'answer_start', found {_names(columns)}")
    if len(texts) != len(starts):
        raise DataError(f"{where}: expected as many in 'answer_start' as in 'text' ({len(texts)}), found {len(starts)}")
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _parse_answer(answer: object, context: str, where: str) -> tuple[str, int]:
    if not isinstance(answer, dict):
        raise DataError(f"{where}: expected an object with 'text' and 'answer_start', found {type(answer).__name__}")
    if not {"text", "answer_start"} <= answer.keys():
        raise DataError(f"{where}: expected 'text' and 'answer_start', found {_names(answer)}")
    text, start = answer["text"], answer["answer_start"]
    if not isinstance(text, str) or not text:
        raise DataError(f"{where}: expected 'text' to be a non-empty string, found {text!r}")
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise DataError(f"{where}: expected 'answer_start' to be a whole number from 0, found {start!r}")
    if not context.startswith(text, start):
        found = context[start : start + len(text)]
        raise DataError(f"{where}: expected {text!r} at character {start} of the context, found {found!r}")
    return text, start


def _names(fields: dict[str, Any]) -> str:
    return ", ".join(map(repr, fields)) or "nothing"
