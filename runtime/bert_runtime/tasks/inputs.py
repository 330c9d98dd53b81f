"""Rows of a data file as inputs, labels or no labels."""

from bert_runtime.records import Record
from bert_runtime.tasks.base import TextInput
from bert_runtime.tasks.tokens import join_words

__all__ = ["input_of"]


def input_of(record: Record) -> TextInput:
    """What a row has to be answered: a question and its context, tokens, a text, or a pair of texts.

    Raises `DataError` for a row without any.
    """
    if "question" in record.fields:
        return TextInput(record.text("question"), record.text("context"))
    if "tokens" in record.fields:
        return join_words(record.tokens())[0]
    return TextInput(record.text(), record.optional_text("text_pair"))
