"""The `bert-export` command group."""

import os
from importlib.metadata import version
from typing import Any

import click

from bert_export.cli.bench import bench
from bert_export.cli.common import is_first_process
from bert_export.cli.distill import distill
from bert_export.cli.errors import ErrorGroup
from bert_export.cli.evaluate import evaluate
from bert_export.cli.export import export
from bert_export.cli.inspect import inspect
from bert_export.cli.predict import predict
from bert_export.cli.pretrain import pretrain
from bert_export.cli.tokenizer import tokenizer
from bert_export.cli.train import train
from bert_export.cli.tune import tune
from bert_export.cli.verify import verify

__all__ = ["main"]


class _Group(ErrorGroup):
    """Says errors in the first process of a run alone."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, KeyboardInterrupt) as error:
            if is_first_process():
                raise
            # Lightning kills the first process when one that it has started fails: before it has spoken, perhaps.
            started_by_lightning = "TORCHELASTIC_RUN_ID" not in os.environ and os.environ.get("LOCAL_RANK", "0") != "0"
            ctx.exit(0 if started_by_lightning else getattr(error, "exit_code", 1))


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("bert-export"), prog_name="bert-export")
def main() -> None:
    """Take BERT-family PyTorch checkpoints to fast, verified ONNX bundles, and run them."""


for _command in (tokenizer, pretrain, train, distill, export, inspect, verify, predict, evaluate, tune, bench):
    main.add_command(_command)
