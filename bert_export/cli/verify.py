"""`bert-export verify`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bert_export.cli.help import ExampleCommand
from bert_export.cli.options import bundle_argument, json_option
from bert_export.cli.output import print_json
from bert_export.cli.terminal import print_table

if TYPE_CHECKING:
    from bert_runtime.verification import Check

__all__ = ["verify"]


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-export verify bundle",
    ],
)
@bundle_argument
@json_option
def verify(bundle: Path, as_json: bool) -> None:
    """Check BUNDLE's file hashes and self-test outputs."""
    from bert_runtime.verification import verify as verify_bundle

    checks = verify_bundle(bundle)
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        print_table([(_verdict(check), check.name, check.detail) for check in checks])
    failed = sum(not check.passed for check in checks)
    if failed:
        raise click.ClickException(
            f"{failed} of {len(checks)} checks failed; export the bundle again or make a new copy of it"
        )


def _verdict(check: "Check") -> str:
    return "skipped" if check.skipped else "ok" if check.passed else "FAILED"
