"""Conversion of errors into one-line messages."""

from typing import Any

import click

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
    "matplotlib": "bench",
    "onnxruntime": "cpu",
}
"""Optional modules, with the extra that installs each."""


def provided_by_extra(error: ModuleNotFoundError) -> bool:
    """Return whether one of this project's extras installs the missing module."""
    return _top_level_name(error) in _EXTRAS


def _top_level_name(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]


class ErrorGroup(click.Group):
    """A command group that prints the project's errors as one line on stderr and exits with code 1."""

    program = "bert-export"
    """The name of the command line in messages."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BertError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            if not provided_by_extra(error):
                raise
            command, module = ctx.invoked_subcommand, _top_level_name(error)
            extra = "train" if command in ("train", "pretrain", "distill") else _EXTRAS[module]
            missing = MissingExtraError(module, extra, f"{self.program} {command}")
            raise click.ClickException(str(missing)) from error
