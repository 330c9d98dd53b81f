"""Errors of the tokenizers library, which is written in Rust."""

from collections.abc import Iterator
from contextlib import contextmanager

from bert_runtime.errors import BertError

__all__ = ["is_tokenizer_error", "tokenizer_errors"]


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
