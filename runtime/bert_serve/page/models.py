"""Models of the page: the served ones, their other precisions and their attention graphs."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import ref

from bert_runtime import AttentionModel, Model, load, load_attention
from bert_runtime.cascade import Cascade
from bert_runtime.errors import InputError
from bert_serve.errors import QueueFullError
from bert_serve.serving.served_model import ServedModel
from bert_serve.settings import ServerSettings

__all__ = ["MAX_ATTENTION_TOKENS", "PageModels", "precisions"]

T = TypeVar("T")

_log = logging.getLogger("bert_serve")

_MAX_LOADED = 2
"""Models kept beside the served ones; the one that was used longest ago is dropped first. A judgement."""

MAX_ATTENTION_TOKENS = 128
"""Tokens that attention is drawn for. Of 12 layers of 12 heads, that is a message of 6 MB, and cells of few pixels."""

_MAX_WAITING = 16
"""Requests of the page that wait for their turn; more are refused. A judgement."""


class PageModels:
    """Models of other precisions than the served ones, loaded when the page first asks for them.

    The page's requests take turns: one at a time is loaded or computed, in a thread, beside the served traffic.

    Args:
        settings: the server's.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._loaded: OrderedDict[tuple[ref[Model], str], Any] = OrderedDict()
        """Models that were loaded of a served bundle, by their kind, as long as it is served."""
        self._turn = asyncio.Lock()
        self._num_waiting = 0

    def __len__(self) -> int:
        """Count the models that are loaded beside the served ones."""
        return len(self._loaded)

    async def run(self, served: ServedModel, model: Model, precision: str, work: Callable[[Model], T]) -> T:
        """Return what a function makes of a model, when it is the page's turn.

        Args:
            served: the model behind its name.
            model: the model that it serves now.
            precision: the precision to run it in; it is loaded where the server does not have it yet.
            work: runs in a thread.

        Raises:
            InputError: the bundle has no such precision.
            QueueFullError: too many requests of the page are waiting.
        """
        if precision not in (known := precisions(model)):
            raise InputError(f"expected a precision of {', '.join(known)}, found {precision!r:.40}")
        if precision == known[0]:
            return await self._in_turn(lambda: work(model))
        load_kind = partial(self._load, precision=precision)
        return await self._in_turn(lambda: work(self._get(served.name, model, precision, load_kind)))

    async def run_attention(self, served: ServedModel, work: Callable[[AttentionModel], T]) -> T:
        """Return what a function makes of a bundle's attention graph, when it is the page's turn.

        Args:
            served: the model behind its name.
            work: runs in a thread.

        Raises:
            InputError: the bundle has no such graph.
            QueueFullError: too many requests of the page are waiting.
        """
        model = served.model
        manifest = model.manifest
        if manifest is None or manifest.attention is None:
            raise InputError("this bundle has no attention graph; export it with --attention")
        max_tokens = min(manifest.max_tokens, MAX_ATTENTION_TOKENS)
        threads = self._settings.engine.load_options.get("threads")
        load_kind = partial(load_attention, max_tokens=max_tokens, threads=threads)
        return await self._in_turn(lambda: work(self._get(served.name, model, "attention", load_kind)))

    async def _in_turn(self, work: Callable[[], T]) -> T:
        if self._num_waiting >= _MAX_WAITING:
            raise QueueFullError(f"{_MAX_WAITING} requests of the page are waiting; try again later")
        self._num_waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(work)
        finally:
            self._num_waiting -= 1

    def _load(self, bundle: Path, precision: str) -> Model:
        # One input at a time needs no second session.
        options = {**self._settings.engine.load_options, "precision": precision, "inter_threads": 1}
        return load(bundle, **options)

    def _get(self, name: str, served: Model, kind: str, load_kind: Callable[[Path], T]) -> T:
        """Return what is loaded of a served model's bundle, of this kind; load it first where it is not."""
        key = ref(served, lambda gone: self._loaded.pop((gone, kind), None)), kind
        loaded: T | None = self._loaded.pop(key, None)
        if loaded is None:
            while len(self._loaded) >= _MAX_LOADED:
                with suppress(KeyError):  # a replaced model has just been freed, and with it what was loaded
                    self._loaded.popitem(last=False)
            loaded = load_kind(self._settings.bundles[name])
            _log.info("the page loaded %r of model %r", kind, name)
        self._loaded[key] = loaded
        return loaded


def precisions(model: Model) -> list[str]:
    """Return the precisions of a loaded model's bundle for the kind of device, its own first; one of a cascade."""
    if isinstance(model, Cascade):
        return [" + ".join(precisions(part)[0] for part in (model.small, model.large))]
    assert model.manifest is not None, "a loaded bundle has a manifest"
    assert model.variant is not None, "a loaded bundle has a variant"
    others = {variant.precision for variant in model.manifest.variants_for(model.variant.target)}
    return [model.variant.precision, *sorted(others - {model.variant.precision})]
