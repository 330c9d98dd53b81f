"""What a model reads in a row of a data file."""

from bert_runtime.records import Record
from bert_runtime.tasks.base import TextInput
from bert_runtime.tasks.tokens import join_words

__all__ = ["text_input"]


def text_input(record: Record) -> TextInput:
    """A row as an input: a question and its context, the tokens of a sentence, or a text with its pair if it has one.

    Labels are not looked at. Raises `DataError` for a row that has none of these.
    """
    if "question" in record.fields:
        return TextInput(record.text("question"), record.text("context"))
    if "tokens" in record.fields:
        return join_words(record.tokens())[0]
    return TextInput(record.text(), record.optional_text("text_pair"))
