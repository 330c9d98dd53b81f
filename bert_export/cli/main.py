"""The `bert-export` command group."""

from importlib.metadata import version

import click

from bert_export.cli.bench import bench
from bert_export.cli.errors import ErrorGroup
from bert_export.cli.evaluate import evaluate
from bert_export.cli.export import export
from bert_export.cli.inspect import inspect
from bert_export.cli.predict import predict
from bert_export.cli.pretrain import pretrain
from bert_export.cli.tokenizer import tokenizer
from bert_export.cli.train import train
from bert_export.cli.verify import verify

__all__ = ["main"]


@click.group(cls=ErrorGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("bert-export"), prog_name="bert-export")
def main() -> None:
    """Take BERT-family PyTorch checkpoints to fast, verified ONNX bundles, and run them."""


for _command in (tokenizer, pretrain, train, export, inspect, verify, predict, evaluate, bench):
    main.add_command(_command)
