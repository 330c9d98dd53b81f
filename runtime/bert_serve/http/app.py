"""The application: models, routes, limits, and what happens when it starts and ends."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import ModuleType

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from bert_runtime import __version__
from bert_runtime.errors import BertError
from bert_serve.http import kserve, openai, operations, pipelines, rerank, tei
from bert_serve.http.errors import ErrorBody, add_error_handlers
from bert_serve.http.middleware import ApiKeys, BodyLimit, RequestLog
from bert_serve.metrics import Metrics
from bert_serve.page.routes import add_page
from bert_serve.serving.served_model import Models
from bert_serve.settings import ServerSettings

__all__ = ["create_app"]

_log = logging.getLogger("bert_serve")

_FORMATS: tuple[ModuleType, ...] = (openai, tei, rerank, kserve, pipelines)
"""Modules with the routes of a wire format: a `router`, and the format of its errors, `error_body`."""


def create_app(
    settings: ServerSettings, on_failure: Callable[[], None] = lambda: None, *, wait_for_models: bool = False
) -> FastAPI:
    """Return the application that serves bundles.

    Models are loaded in the background once it starts: until then, `/health` and inference answer 503. An application
    that mounts it must enter `app.router.lifespan_context(app)` in its own lifespan, since Starlette does not.

    Args:
        settings: what to serve, and to whom.
        on_failure: called where a bundle cannot be loaded at the start; the log says why.
        wait_for_models: whether to load the models before the application has started instead; where one cannot be
            loaded, the start fails.
    """
    metrics = Metrics()
    models = Models(settings, metrics)
    app = FastAPI(
        title="bert-export",
        version=__version__,
        summary="Exported encoders over HTTP",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        lifespan=partial(
            _lifespan, models=models, reload_s=settings.reload_s, on_failure=on_failure, wait_for_models=wait_for_models
        ),
    )
    app.state.settings, app.state.models, app.state.metrics = settings, models, metrics
    app.router.routes.extend(operations.router.routes)  # `include_router` would match each request twice
    bodies: dict[str, ErrorBody] = {"/v2/*": kserve.error_body}  # its clients ask for routes that do not exist here
    for module in _FORMATS:
        app.router.routes.extend(module.router.routes)
        bodies |= {route.path: module.error_body for route in module.router.routes}
    if settings.page:
        add_page(app, bodies)
    add_error_handlers(app, bodies)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(ApiKeys, keys=settings.api_keys)
    app.add_middleware(RequestLog, metrics=metrics, log_texts=settings.log_texts)
    if settings.cors_origins:  # around all, so that pages can read every failure
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    return app


_LAST_BATCH_S = 10.0
"""Seconds that a batch of requests that were given up has to end (a judgement). Python ends a thread that comes back
from native code while it shuts down, and C++ may then abort the process."""


_CHECK_S = 1.0
"""Seconds between looks for models that fail, where replaced bundles are not looked for. A judgement."""


@asynccontextmanager
async def _lifespan(
    app: FastAPI, models: Models, reload_s: float | None, on_failure: Callable[[], None], *, wait_for_models: bool
) -> AsyncIterator[None]:
    """Load the models, by default while the server already answers probes, and end them with it."""
    if wait_for_models:
        await _load(models)
    task = asyncio.create_task(_load_and_watch(models, reload_s, on_failure))
    yield
    task.cancel()
    for served in models.values():
        served.close()
    for served in models.values():
        await asyncio.to_thread(served.join, _LAST_BATCH_S)


async def _load(models: Models) -> None:
    """Load the models that are not loaded yet; log and raise why one cannot be."""
    for served in models.values():
        if served.ready:
            continue
        try:
            await served.load()
        except Exception as error:  # of the file system or a driver, too
            unforeseen = not isinstance(error, BertError)
            _log.critical("model %r cannot be loaded: %s", served.name, error, exc_info=unforeseen)
            raise
        _log.info("model %r is ready: %r", served.name, served.model)


async def _load_and_watch(models: Models, reload_s: float | None, on_failure: Callable[[], None]) -> None:
    try:
        await _load(models)
    except Exception:  # the log says why
        on_failure()
        return
    while True:
        await asyncio.sleep(reload_s or _CHECK_S)
        for served in models.values():
            if reload_s is not None:
                await served.load_if_changed()
            await served.check_failures()
