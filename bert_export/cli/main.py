"""The `bert-export` command group."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import click

from bert_export.cli.attention import attention
from bert_export.cli.batch import batch
from bert_export.cli.calibrate_scores import calibrate_scores
from bert_export.cli.cascade import cascade
from bert_export.cli.compress import compress
from bert_export.cli.distill import distill
from bert_export.cli.evaluate import evaluate
from bert_export.cli.export import export
from bert_export.cli.hub import pull, push
from bert_export.cli.inspect import inspect
from bert_export.cli.output import is_rank_zero
from bert_export.cli.plugins import PluginGroup
from bert_export.cli.predict import predict
from bert_export.cli.pretrain import pretrain
from bert_export.cli.rank import rank
from bert_export.cli.report import report
from bert_export.cli.serve import serve
from bert_export.cli.tokenizer import tokenizer
from bert_export.cli.train import train
from bert_export.cli.triton import triton
from bert_export.cli.tune import tune
from bert_export.cli.verify import verify

__all__ = ["main"]

_EPILOG = """\b
`bert-export COMMAND -h` explains a command. To complete commands and options with Tab:
bash  eval "$(_BERT_EXPORT_COMPLETE=bash_source bert-export)"
zsh   eval "$(_BERT_EXPORT_COMPLETE=zsh_source bert-export)"
fish  _BERT_EXPORT_COMPLETE=fish_source bert-export | source
"""


class _MainGroup(PluginGroup):
    """The commands in sections; of a distributed run, the rank-zero process alone prints errors."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {
        "Train": ("tokenizer", "pretrain", "train", "distill", "compress"),
        "Export": ("export", "cascade", "inspect", "verify", "push", "pull"),
        "Run": ("predict", "rank", "evaluate", "attention"),
        "Deploy": ("serve", "batch", "triton"),
        "Measure": ("tune", "calibrate-scores", "bench", "report"),
    }
    examples: ClassVar[Sequence[str]] = (
        "bert-export export all-MiniLM-L6-v2 bundle",
        'bert-export predict bundle "I lost my card"',
    )

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


@click.group(cls=_MainGroup, epilog=_EPILOG)
@click.version_option(package_name="bert-export", prog_name="bert-export")
def main() -> None:
    """Turn BERT-family PyTorch checkpoints into fast, verified ONNX bundles, and run them."""


_COMMANDS = (
    tokenizer,
    pretrain,
    train,
    distill,
    compress,
    export,
    inspect,
    verify,
    predict,
    rank,
    evaluate,
    attention,
    batch,
    serve,
    triton,
    tune,
    calibrate_scores,
    cascade,
    report,
    push,
    pull,
)

for _command in _COMMANDS:
    main.add_command(_command)
