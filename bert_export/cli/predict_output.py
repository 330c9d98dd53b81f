"""Results of `bert-export predict` on stdout or in a file."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import click

from bert_export.output_files import write_errors
from bert_runtime.bundle.atomic_files import atomic_write, is_device
from bert_runtime.errors import BertError, DataError
from bert_runtime.inputs import InputFailure
from bert_runtime.tasks import Result, TextInput

__all__ = ["Answer", "encodable", "json_line", "open_output", "text_line"]

Answer = Result | InputFailure


def json_line(answer: Answer) -> str:
    """Return an answer as one line of JSON.

    Raises:
        DataError: a number is not finite, which JSON cannot say.
    """
    try:
        return encodable(json.dumps(answer.to_dict(), ensure_ascii=False, allow_nan=False))
    except ValueError:
        raise DataError(
            "expected finite numbers, which JSON can hold, found NaN or infinity in the model's output; see what "
            "`bert-export verify` says of the bundle"
        ) from None


def text_line(value: TextInput | DataError, answer: Answer) -> str:
    """Return an answer as one line of text, followed by its input."""
    if isinstance(value, DataError):
        return encodable(answer.summary())
    shown = " ".join(" | ".join(part for part in value if part is not None).split())
    return encodable(f"{answer.summary()}\t{shown}")


def encodable(line: str) -> str:
    r"""Write lone surrogates, as of a text that cannot be processed, as `\udce9`, their escape in JSON, too."""
    return line if line.isascii() else line.encode("utf-8", "backslashreplace").decode("utf-8")


@contextmanager
def open_output(path: Path) -> Iterator[TextIO]:
    """Open a file that replaces `path` once it is complete; a pipe or a device is written to directly, line by line.

    After an error or Ctrl-C, `path` is unchanged, and what was written before is in a file beside it.

    Raises:
        DataError: `path` cannot be written to.
    """
    with write_errors(path):
        if is_device(path):
            with path.open("w", encoding="utf-8", buffering=1) as device:
                yield device
        else:
            with atomic_write(path) as stream, _keep_written(stream, f"{path.name}.partial"):
                yield stream


@contextmanager
def _keep_written(stream: TextIO, name: str) -> Iterator[None]:
    """Name what has been written to the file `stream` as `name` where the block ends with an error or Ctrl-C."""
    written = Path(stream.name)
    try:
        yield
    except BaseException as error:
        with suppress(OSError):  # a full disk: what fits on it is kept
            stream.flush()
        if not written.stat().st_size:
            raise
        kept = written.replace(written.with_name(name))
        if isinstance(error, BertError):
            raise BertError(f"{error}; the results before it are in {kept}") from None
        click.echo(f"the results until then are in {kept}", err=True)
        raise
