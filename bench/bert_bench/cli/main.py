"""The `bert-bench` command group."""

from collections.abc import Sequence
from typing import ClassVar

import click

from bert_bench.cli.compare import compare
from bert_bench.cli.report import report
from bert_bench.cli.run import run
from bert_export.cli.errors import ErrorGroup

__all__ = ["main"]


class _Group(ErrorGroup):
    """Error messages that name `bert-bench`."""

    program = "bert-bench"
    examples: ClassVar[Sequence[str]] = (
        "bert-bench run checkpoint --quick --output results",
        "bert-bench report results/result.json",
    )


@click.group(cls=_Group)
@click.version_option(package_name="bert-export", prog_name="bert-bench")
def main() -> None:
    """Compare exported bundles with PyTorch, ONNX Runtime, OpenVINO, CTranslate2 and others on this machine."""


for _command in (run, report, compare):
    main.add_command(_command)
