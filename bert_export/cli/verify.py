"""`bert-export verify`."""

from dataclasses import asdict
from pathlib import Path

import click

from bert_export.cli.common import bundle_argument, json_option, print_json, table

__all__ = ["verify"]


@click.command()
@bundle_argument
@json_option
def verify(bundle: Path, as_json: bool) -> None:
    """Check BUNDLE's files against their hashes and its answers against the recorded ones."""
    from bert_runtime.verification import verify as verify_bundle

    checks = verify_bundle(bundle)
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        click.echo(table([("ok" if check.passed else "FAILED", check.name, check.detail) for check in checks]))
    failed = sum(not check.passed for check in checks)
    if failed:
        raise click.ClickException(f"{failed} of {len(checks)} checks failed; export the bundle again or copy it anew")
