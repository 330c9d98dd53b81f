"""Conversion of errors into one-line messages."""

import errno
import os
import re
import sys
from contextlib import suppress
from typing import IO, Any

import click

from bert_export.cli.help import SectionedGroup
from bert_runtime.errors import BertError, MissingExtraError

__all__ = ["ErrorGroup", "provided_by_extra"]

_EXTRAS = {
    "torch": "export",
    "onnx": "export",
    "onnx_ir": "export",
    "onnxscript": "export",
    "safetensors": "export",
    "sentencepiece": "export",
    "google": "export",  # protobuf
    "yaml": "export",
    "lightning": "train",
    "datasets": "train",
    "tqdm": "train",
    "tensorboard": "train",
    "huggingface_hub": "hub",
    "psutil": "bench",
    "matplotlib": "plot",
    "locust": "bench",
    "jinja2": "report",
    "markupsafe": "report",
    "onnxruntime": "cpu",
    "fastapi": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "orjson": "serve",
    "prometheus_client": "serve",
    "pyarrow": "batch",
    "ray": "ray",
}
"""Optional modules, with the extra that installs each."""


_EXPORT_ONLY = ("onnx", "onnx_ir", "onnxscript")
"""Modules that `compress` needs, too, and that the extra `train` does not install."""


def provided_by_extra(error: ModuleNotFoundError) -> bool:
    """Return whether one of this project's extras installs the missing module."""
    return _top_level_name(error) in _EXTRAS


def _top_level_name(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]


class CommandError(click.ClickException):
    """A failure whose message starts with a red word in a terminal."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message on stderr, see `click.ClickException.show`."""
        color = False if os.environ.get("NO_COLOR") else None
        click.echo(f"{click.style('Error:', fg='red', bold=True)} {self.format_message()}", file, err=True, color=color)


class ErrorGroup(SectionedGroup):
    """A command group that prints errors as one line on stderr and exits with code 1.

    Errors are the project's, and the system's: a name that is too long, a full disk.
    """

    program = "bert-export"
    """The name of the command line in messages."""

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            return super().main(*args, **options)
        except OSError as error:  # of --help and --version, which print before `invoke`
            if not options.get("standalone_mode", True):
                raise
            with suppress(OSError):
                CommandError(_describe_system_error(error)).show()
            sys.exit(1)
        finally:
            _drop_unwritable_output()

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            says_so = isinstance(error, BertError) and not isinstance(error, MissingExtraError)  # "interrupted; resume"
            if _was_interrupted(error) and not says_so:
                raise click.Abort from error
            if (message := self._describe(ctx, error)) is None:
                raise
            raise CommandError(message) from error

    def _describe(self, ctx: click.Context, error: Exception) -> str | None:
        """Describe an error of the project or the system in one line; return `None` for any other."""
        if isinstance(error, BertError):
            return _shorten_names(str(error))
        if isinstance(error, OSError) and error.errno != errno.EPIPE:  # click exits for `bert-export … | head`
            return _describe_system_error(error)
        if isinstance(error, ModuleNotFoundError) and provided_by_extra(error):
            command, module = ctx.invoked_subcommand, _top_level_name(error)
            trains = command in ("train", "pretrain", "distill", "compress") and module not in _EXPORT_ONLY
            extra = "train" if trains else _EXTRAS[module]
            return str(MissingExtraError(module, extra, f"{self.program} {command}"))
        return None


def _describe_system_error(error: OSError) -> str:
    where = "input or output failed" if error.filename is None else _shorten_names(str(error.filename))
    return f"{where}: {error.strerror or error}"


def _shorten_names(message: str) -> str:
    """Leave out the middle of words of over 300 characters, such as paths that no file can have."""
    return re.sub(r"\S{300,}", lambda word: f"{word[0][:100]}…{word[0][-100:]}", message)


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether an error stems from Ctrl-C: modules that are being imported turn that into errors of their own."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _drop_unwritable_output() -> None:
    """Keep Python from failing once more at its end, when it flushes output that could not be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
