"""`bert-export push` and `bert-export pull`."""

from pathlib import Path

import click

from bert_export.cli.options import bundle_argument, force_option

__all__ = ["pull", "push"]


@click.command()
@bundle_argument
@click.argument("repo", metavar="ORG/NAME")
@click.option("--revision", show_default="main", help="Branch to commit to, which is created if it is new.")
@click.option("--private", is_flag=True, help="Create the repository as a private one.")
@click.option("--message", default="Upload a bundle of bert-export", show_default=True, help="Message of the commit.")
def push(bundle: Path, repo: str, revision: str | None, private: bool, message: str) -> None:
    """Upload BUNDLE to the model ORG/NAME on the Hugging Face hub, after checking its hashes."""
    from bert_runtime.hub import push as push_bundle

    click.echo(push_bundle(bundle, repo, revision=revision, private=private, message=message))


@click.command()
@click.argument("name", metavar="ORG/NAME[@REVISION]")
@bundle_argument
@force_option
def pull(name: str, bundle: Path, force: bool) -> None:
    """Download a bundle from the Hugging Face hub to BUNDLE, and check its hashes."""
    from bert_runtime.hub import pull as pull_bundle

    manifest = pull_bundle(name, bundle, force=force)
    click.echo(f"wrote {bundle}: {manifest.task.name}, {len(manifest.variants)} variants, hashes as recorded")
