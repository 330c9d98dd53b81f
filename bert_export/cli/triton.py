"""`bert-export triton`."""

from pathlib import Path

import click

from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import bundle_argument, engine_option, force_option, output_option
from bert_export.cli.output import print_next
from bert_export.cli.param_types import PATH
from bert_runtime.bundle.manifest import PRECISIONS

__all__ = ["triton"]

batch_option = option_group("Batches")


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-export triton bundle repository",
        "bert-export triton bundle repository --name intents --instances 2 --force",
    ],
)
@bundle_argument
@click.argument("repository", type=PATH)
@engine_option(
    "--instances",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes that run the model, on each GPU with --gpu.",
)
@engine_option(
    "--threads",
    type=click.IntRange(1),
    show_default="cores / instances; of one instance, as measured by tune, else all cores",
    help="Threads of each instance.",
)
@engine_option(
    "--precision",
    type=click.Choice(["auto", *PRECISIONS]),
    default="auto",
    show_default=True,
    help="Variant to run. auto: the bundle's default.",
)
@engine_option("--gpu", is_flag=True, help="Run the instances on Triton's GPUs instead of the CPU.")
@batch_option(
    "--max-batch-size",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Most texts of a request, and of a dynamic batch of requests.",
)
@batch_option(
    "--max-queue-delay-us",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Microseconds that Triton holds a request back to batch it with others.",
)
@batch_option(
    "--max-queue-size",
    type=click.IntRange(0),
    default=1024,
    show_default=True,
    help="Requests that may wait; Triton refuses more. 0: any number.",
)
@output_option("--name", show_default="that of the bundle's folder", help="Name of the model.")
@output_option("--link", is_flag=True, help="Hard-link the bundle's files instead of copying them.")
@force_option
def triton(
    bundle: Path,
    repository: Path,
    name: str | None,
    instances: int,
    gpu: bool,
    precision: str,
    threads: int | None,
    max_batch_size: int,
    max_queue_delay_us: int,
    max_queue_size: int,
    link: bool,
    force: bool,
) -> None:
    """Write BUNDLE into a model repository of Triton.

    The folder REPOSITORY gets a model that Triton Inference Server loads. Triton needs its Python backend, and
    bert-export in the Python that the backend runs. Texts go in, decoded results come out as JSON, embeddings as an
    array, too.
    """
    from bert_serve.triton import ModelConfig, write_model

    config = ModelConfig(
        instances=instances,
        gpu=gpu,
        max_batch_size=max_batch_size,
        max_queue_delay_us=max_queue_delay_us,
        max_queue_size=max_queue_size,
        precision=precision,
        threads=threads,
    )
    model = write_model(bundle, repository, name=name, config=config, link=link, force=force)
    click.echo(f"wrote {model}")
    print_next("tritonserver", "--model-repository", repository.resolve())
