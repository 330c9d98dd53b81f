"""The `bert-export` command group."""

import os
from importlib.metadata import version
from typing import Any

import click

from bert_export.cli.distill import distill
from bert_export.cli.evaluate import evaluate
from bert_export.cli.export import export
from bert_export.cli.hub import pull, push
from bert_export.cli.inspect import inspect
from bert_export.cli.output import is_rank_zero
from bert_export.cli.plugins import PluginGroup
from bert_export.cli.predict import predict
from bert_export.cli.pretrain import pretrain
from bert_export.cli.tokenizer import tokenizer
from bert_export.cli.train import train
from bert_export.cli.tune import tune
from bert_export.cli.verify import verify

__all__ = ["main"]


class _RankZeroGroup(PluginGroup):
    """A command group that prints errors in the rank-zero process of a distributed run only."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, KeyboardInterrupt) as error:
            if is_rank_zero():
                raise
            # Lightning kills rank zero as soon as a process that it started fails, perhaps before rank zero has
            # printed the error. So a process that Lightning started exits with 0.
            started_by_lightning = "TORCHELASTIC_RUN_ID" not in os.environ and os.environ.get("LOCAL_RANK", "0") != "0"
            ctx.exit(0 if started_by_lightning else getattr(error, "exit_code", 1))


@click.group(cls=_RankZeroGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("bert-export"), prog_name="bert-export")
def main() -> None:
    """Take BERT-family PyTorch checkpoints to fast, verified ONNX bundles, and run them."""


_COMMANDS = (tokenizer, pretrain, train, distill, export, inspect, verify, predict, evaluate, tune, push, pull)

for _command in _COMMANDS:
    main.add_command(_command)
