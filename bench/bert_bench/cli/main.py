"""The `bert-bench` command group."""

from importlib.metadata import version

import click

from bert_bench.cli.compare import compare
from bert_bench.cli.report import report
from bert_bench.cli.run import run
from bert_export.cli.errors import ErrorGroup

__all__ = ["main"]


class _Group(ErrorGroup):
    """Error messages that name `bert-bench`."""

    program = "bert-bench"


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("bert-export"), prog_name="bert-bench")
def main() -> None:
    """Compare exported bundles with PyTorch, ONNX Runtime, OpenVINO, CTranslate2 and others on this machine."""


for _command in (run, report, compare):
    main.add_command(_command)
