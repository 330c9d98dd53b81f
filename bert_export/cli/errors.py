"""The one place where errors become messages."""

from typing import Any

import click

from bert_runtime.errors import BertError, MissingExtraError

__all__ = ["ErrorGroup"]

_EXTRAS = {
    "torch": "export",
    "onnx": "export",
    "onnx_ir": "export",
    "onnxscript": "export",
    "safetensors": "export",
    "lightning": "train",
    "yaml": "train",
    "psutil": "bench",
    "matplotlib": "bench",
    "onnxruntime": "cpu",
}
"""Optional modules, with the extra that brings each."""


class ErrorGroup(click.Group):
    """Turns the project's errors into one line on stderr and exit code 1."""

    program = "bert-export"
    """What the command line is called."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BertError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            module = (error.name or "").partition(".")[0]
            if module not in _EXTRAS:
                raise
            command = ctx.invoked_subcommand
            extra = "train" if command in ("train", "pretrain", "distill") else _EXTRAS[module]
            missing = MissingExtraError(module, extra, f"{self.program} {command}")
            raise click.ClickException(str(missing)) from error
