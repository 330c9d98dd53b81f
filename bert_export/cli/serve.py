"""`bert-export serve`."""

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import engine_option
from bert_export.cli.param_types import PATH
from bert_runtime import InputError
from bert_runtime.bundle.manifest import PRECISIONS
from bert_runtime.cascade import read_task

__all__ = ["serve"]

address_option = option_group("Address")
limit_option = option_group("Limits")
access_option = option_group("Access")
operation_option = option_group("Operation")


def _read_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Take defaults from a TOML file whose keys are the options' names."""
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path}: not a TOML file: {error}") from None
    known = {parameter.opts[0].lstrip("-"): str(parameter.name) for parameter in context.command.params}
    known = {flag: name for flag, name in known.items() if name not in ("config", "help")}
    if unknown := sorted(set(values) - set(known)):
        raise click.UsageError(f"{path}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    context.default_map = {known[flag]: value for flag, value in values.items()}


def _named_bundles(bundles: Sequence[str]) -> dict[str, Path]:
    """Return bundles by name from `BUNDLE` or `NAME=BUNDLE`, after a look that each is one."""
    named: dict[str, Path] = {}
    for text in bundles:
        name, equals, path = ("", "", "") if Path(text).is_dir() else text.partition("=")  # `lr=1/bundle` is a path
        bundle = Path(path if equals else text)
        name = name if equals else bundle.resolve().name
        if not name or name in named:
            found = f"{name!r} twice" if name else f"no name in {text!r}"
            raise InputError(f"expected a name of its own for each bundle (NAME=BUNDLE), found {found}")
        read_task(bundle)
        named[name] = bundle
    return named


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-export serve bundle",
        "# Two models, for other machines, where no request waits for over 0.5 s",
        "bert-export serve intents=bundle search=minilm \\\n    --host 0.0.0.0 --max-queue-ms 500",
    ],
    context_settings={"auto_envvar_prefix": "BERT_SERVE"},
)
@click.argument("bundles", nargs=-1, required=True, envvar="BERT_SERVE_BUNDLES", metavar="BUNDLE|NAME=BUNDLE...")
@address_option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@address_option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 for a free port.")
@address_option("--uds", type=PATH, help="Unix socket to listen on instead.")
@engine_option(
    "--precision",
    type=click.Choice(["auto", *PRECISIONS]),
    default="auto",
    show_default=True,
    help="Variant to run, as of predict.",
)
@engine_option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, tensorrt or auto.")
@engine_option(
    "--threads",
    type=click.IntRange(1),
    show_default="as measured by tune, else one per available core; cores / workers with --workers",
    help="Threads of each model.",
)
@engine_option(
    "--inter-threads",
    type=click.IntRange(1),
    show_default="as measured by tune, else threads",
    help="Batches run in parallel, a thread each.",
)
@engine_option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True,
    help="Processes that answer, each with its share of the cores and its own queue.",
)  # fmt: skip
@engine_option("--max-batch-tokens", type=click.IntRange(1), help="Padded tokens per batch.")
@limit_option(
    "--max-queue-ms",
    type=click.FloatRange(1),
    default=2_000,
    show_default=True,
    help="Longest wait of a request until its start; one that is expected to wait over 0.8 of it gets 429.",
)
@limit_option(
    "--max-queue-tokens",
    type=click.IntRange(1),
    default=262_144,
    show_default=True,
    help="Tokens that may wait, of each model; then 429.",
)
@limit_option(
    "--max-texts", type=click.IntRange(1), default=1_024, show_default=True, help="Texts per request; of more, 422."
)
@limit_option(
    "--max-tokens-per-text", type=click.IntRange(1), help="Refuse longer texts (413) instead of truncating them."
)
@limit_option(
    "--max-body-bytes",
    type=click.IntRange(1),
    default=10_000_000,
    show_default=True,
    help="Largest body of a request; of a larger one, 413.",
)
@access_option(
    "--api-key",
    "api_keys",
    multiple=True,
    envvar="BERT_SERVE_API_KEY",
    help="Key that requests must carry; repeatable.",
)
@access_option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    envvar="BERT_SERVE_CORS_ORIGIN",
    help="Origin whose pages may call; repeatable.",
)
@access_option("--page/--no-page", default=True, show_default=True, help="Have a page to try the models on at /.")
@operation_option(
    "--reload/--no-reload", default=True, show_default=True, help="Load a bundle that is replaced on disk."
)
@operation_option(
    "--drain-s",
    type=click.FloatRange(0),
    default=30,
    show_default=True,
    help="Seconds to finish requests after SIGTERM.",
)
@operation_option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least severe lines of the log.",
)
@operation_option("--log-texts", is_flag=True, help="Write the bodies of requests into the log.")
@operation_option(
    "--config", type=click.Path(path_type=Path, exists=True, dir_okay=False), callback=_read_config, is_eager=True,
    expose_value=False, help="TOML file of these options, such as port = 9000.",
)  # fmt: skip
def serve(
    bundles: tuple[str, ...],
    host: str,
    port: int,
    uds: Path | None,
    workers: int,
    drain_s: float,
    log_level: str,
    **options: Any,
) -> None:
    """Serve bundles over HTTP.

    It speaks the formats of OpenAI, TEI, Cohere, KServe and the Hugging Face pipelines.

    Every option can also be set by an environment variable, such as BERT_SERVE_PORT, or in a file (--config).
    """
    from bert_serve.server import run_server

    if "BERT_SERVE_API_KEY" in os.environ and not options["api_keys"]:
        raise click.UsageError("BERT_SERVE_API_KEY: expected a key, found nothing; unset it to serve without keys")
    settings = _settings(_named_bundles(bundles), options)
    code = run_server(settings, host=host, port=port, uds=uds, drain_s=drain_s, workers=workers, log_level=log_level)
    raise click.exceptions.Exit(code)


def _settings(bundles: dict[str, Path], options: dict[str, Any]) -> Any:
    from bert_serve.settings import EngineSettings, ServerSettings

    load_names = ("precision", "device", "threads", "inter_threads", "max_batch_tokens")
    engine_names = ("max_queue_tokens", "max_queue_ms", "max_texts", "max_tokens_per_text")
    load_options = {name: options[name] for name in load_names}
    engine = EngineSettings(load_options=load_options, **{name: options[name] for name in engine_names})
    return ServerSettings(
        bundles=bundles,
        engine=engine,
        max_body_bytes=options["max_body_bytes"],
        api_keys=options["api_keys"],
        cors_origins=options["cors_origins"],
        reload_s=1.0 if options["reload"] else None,
        page=options["page"],
        log_texts=options["log_texts"],
    )
