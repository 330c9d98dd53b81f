"""`bert-export push` and `bert-export pull`."""

from pathlib import Path

import click

from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import bundle_argument, force_option
from bert_export.cli.output import predict_arguments, print_next

__all__ = ["pull", "push"]


hub_option = option_group("Hub")


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-export push bundle my-org/intents-onnx --private",
    ],
)
@bundle_argument
@click.argument("repo", metavar="ORG/NAME")
@hub_option("--revision", show_default="main", help="Branch to commit to, which is created if it is new.")
@hub_option("--private", is_flag=True, help="Create the repository as a private one.")
@hub_option("--message", default="Upload a bundle of bert-export", show_default=True, help="Message of the commit.")
def push(bundle: Path, repo: str, revision: str | None, private: bool, message: str) -> None:
    """Upload BUNDLE to the Hugging Face hub.

    It becomes the model ORG/NAME, after its hashes are checked.
    """
    from bert_runtime.hub import push as push_bundle

    click.echo(push_bundle(bundle, repo, revision=revision, private=private, message=message))
    print_next("bert-export", "pull", f"{repo}@{revision}" if revision else repo, "BUNDLE", why="elsewhere")


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-export pull my-org/intents-onnx bundle",
        "bert-export pull my-org/intents-onnx@v2 bundle --force",
    ],
)
@click.argument("name", metavar="ORG/NAME[@REVISION]")
@bundle_argument
@force_option
def pull(name: str, bundle: Path, force: bool) -> None:
    """Download a bundle from the Hugging Face hub.

    The model ORG/NAME becomes the folder BUNDLE, after its hashes are checked.
    """
    from bert_runtime.hub import pull as pull_bundle

    manifest = pull_bundle(name, bundle, force=force)
    click.echo(f"wrote {bundle}: {manifest.task.name}, {len(manifest.variants)} variants, hashes as recorded")
    print_next("bert-export", "predict", bundle, *predict_arguments(manifest.task))
