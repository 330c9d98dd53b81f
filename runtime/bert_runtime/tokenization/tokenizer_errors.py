"""Errors of the tokenizers library, which is written in Rust."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bert_runtime.errors import BertError, InputError
from bert_runtime.tasks import TextInput

__all__ = ["invalid_unicode", "is_tokenizer_error", "suppress_tokenizer_errors", "tokenizer_errors"]


def is_tokenizer_error(error: BaseException) -> bool:
    """Return whether the library failed: it raises plain `Exception`, and panics are no `Exception` at all.

    A panic is a failed check of an index or a lookup; some files with inconsistent ids are read and panic in use.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def tokenizer_errors(kind: type[BertError], message: str) -> Iterator[None]:
    """Raise `kind` with `message`, a colon and the cause instead of the library's errors."""
    try:
        yield
    except BertError:
        raise
    except BaseException as error:
        if not is_tokenizer_error(error):
            raise
        raise kind(f"{message}: {error!s:.300}") from None


class suppress_tokenizer_errors:  # noqa: N801 # named like `contextlib.suppress`, and a class because it is quicker
    """End the block at an error of the library."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return error is not None and is_tokenizer_error(error)


def invalid_unicode(inputs: Sequence[TextInput], first: int) -> InputError:
    """Return the error for the first input that is not valid Unicode."""
    for index, value in enumerate(inputs, start=first):
        for text in (value.text, value.text_pair or ""):
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                return InputError(
                    f"the text holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}, "
                    "which no text encoding can express; replace it with: text.encode('utf-8', 'replace').decode()",
                    index,
                )
    return InputError("the tokenizer refused these inputs")
