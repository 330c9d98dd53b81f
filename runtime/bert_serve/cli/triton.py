"""`bert-export triton`."""

from pathlib import Path

import click

from bert_serve.triton.model_config import PRECISIONS

__all__ = ["triton"]

_PATH = click.Path(path_type=Path)


@click.command(context_settings={"show_default": True})
@click.argument("bundle", type=_PATH)
@click.argument("repository", type=_PATH)
@click.option("--name", help="Name of the model.  [default: that of the bundle's folder]")
@click.option("--instances", type=click.IntRange(1), default=1, help="Processes that run the model.")
@click.option("--gpu", is_flag=True, help="Run the instances on Triton's GPUs instead of the CPU.")
@click.option("--precision", type=click.Choice(PRECISIONS), default="auto", help="Variant to run.")
@click.option("--threads", type=click.IntRange(1), help="Threads of each instance.  [default: cores / instances]")
@click.option("--max-batch-size", type=click.IntRange(1), default=64, help="Most texts that Triton joins into a batch.")
@click.option(
    "--max-queue-delay-us",
    type=click.IntRange(0),
    default=0,
    help="Microseconds that Triton holds a request back for others to join.",
)
@click.option(
    "--max-queue-size", type=click.IntRange(0), default=1024, help="Requests that may wait; more are refused. 0: any."
)
@click.option("--link", is_flag=True, help="Hard-link the bundle's files instead of copying them.")
@click.option("--force", is_flag=True, help="Replace the model of an earlier run.")
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
    """Write BUNDLE into the Triton model repository REPOSITORY.

    Triton needs its Python backend, and bert-export in the Python that the backend runs. Texts go in, decoded results
    come out as JSON, embeddings as an array, too.
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
    click.echo(f"next: tritonserver --model-repository {repository.resolve()}", err=True)
