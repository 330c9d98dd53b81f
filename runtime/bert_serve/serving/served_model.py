"""Bundles behind the names that clients use, replaced while they are served."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bert_runtime import Model
from bert_runtime.bundle.manifest import MANIFEST_NAME
from bert_runtime.errors import BertError
from bert_runtime.inputs import SingleInput
from bert_runtime.tasks import Result
from bert_serve.errors import ModelBrokenError, ModelNotFoundError, ModelNotReadyError
from bert_serve.metrics import Metrics
from bert_serve.serving.caller import Caller
from bert_serve.serving.cascade_engine import open_engine
from bert_serve.serving.engine import Engine
from bert_serve.settings import EngineSettings, ServerSettings

__all__ = ["Models", "ServedModel"]

_log = logging.getLogger("bert_serve")

_RETRY_S = (2.0, 60.0)
"""Seconds after which a replacement that could not be loaded is tried again: at first, and at most. It may have been
incomplete: whoever copies a bundle file by file often copies the manifest first."""

_RETIRE_S = 5.0
"""Seconds for which a replaced engine still accepts the requests that were tokenized for it."""


class _Failure(NamedTuple):
    """A replacement that could not be loaded."""

    stamp: tuple[int, ...]
    message: str
    wait_s: float
    retry_at: float
    """By `time.monotonic`."""


class ServedModel:
    """A name, and the engine that answers for it: the newest one whose self-test passed.

    Args:
        name: the name that clients use.
        bundle: the bundle's directory.
        settings: how it is loaded.
        metrics: where it is counted.
    """

    def __init__(self, name: str, bundle: Path, settings: EngineSettings, metrics: Metrics) -> None:
        self.name = name
        self._bundle = bundle
        self._open = partial(open_engine, bundle, settings, name, metrics)
        self._metrics = metrics.of_model(name)
        self._engine: Engine | None = None
        self._retired: list[Engine] = []
        """Engines that were replaced, as long as they compute something."""
        self._stamp: tuple[int, ...] | None = None
        self._failure: _Failure | None = None

    @property
    def ready(self) -> bool:
        """Whether the bundle is loaded and has passed its self-test."""
        return self._engine is not None

    @property
    def broken(self) -> bool:
        """Whether the model fails on requests and on its self-test; to start the server anew may help."""
        return self._engine is not None and self._engine.broken

    def check_working(self) -> None:
        """Raise `ModelBrokenError` where the model is broken."""
        if self.broken:
            raise ModelBrokenError(f"model {self.name!r} fails on requests, and on its self-test; the log says why")

    @property
    def engine(self) -> Engine:
        """The engine; raise `ModelNotReadyError` before it is loaded."""
        if self._engine is None:
            raise ModelNotReadyError(f"model {self.name!r} is being loaded; try again")
        return self._engine

    @property
    def model(self) -> Model:
        """The loaded model; raise `ModelNotReadyError` before it is loaded."""
        return self.engine.model

    @property
    def created_s(self) -> int:
        """When the bundle was written, in seconds since 1970; 0 before it is loaded."""
        return 0 if self._stamp is None else self._stamp[2] // 1_000_000_000

    async def results(
        self,
        inputs: Sequence[SingleInput],
        caller: Caller | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        truncate: bool = True,
    ) -> list[Result]:
        """Return the results of inputs in order, computed together with those of other callers.

        Args:
            inputs: inputs as in `bert_runtime.Model.__call__`.
            caller: the request, whose connection is watched.
            options: decoding options of the task for this request, such as `top_k`.
            truncate: whether what exceeds the model's maximum may be cut off.

        Raises:
            InputError: names an input that the task cannot process, or an option that it does not have.
            ServeError: the request cannot be answered now, or exceeds a limit; see `bert_serve.errors`.
        """
        engine = self.engine  # one engine for tokenizing and computing, also if the bundle is replaced meanwhile
        outputs = await engine.run(inputs, caller, truncate=truncate, options=options)
        return await engine.decode(outputs, options)

    async def load(self) -> None:
        """Load the bundle beside the one that is served, and swap them; raise `BertError` where it cannot be loaded."""
        stamp = await asyncio.to_thread(self._read_stamp)
        old, self._engine = self._engine, await asyncio.to_thread(self._open)
        self._stamp, self._failure = stamp, None
        if old is not None:
            self._retired.append(old)
            asyncio.get_running_loop().call_later(_RETIRE_S, self._retire, old)

    def _retire(self, engine: Engine) -> None:
        """Close an engine that was replaced, and let go of it once it computes nothing any more."""
        engine.close()
        if engine.join(0):
            self._retired.remove(engine)
        else:
            asyncio.get_running_loop().call_later(_RETIRE_S, self._retire, engine)

    async def load_if_changed(self) -> None:
        """Load the bundle if it has been replaced on disk; keep the old one where the new one cannot be loaded.

        That is tried again, less and less often, until it can be loaded or is replaced.
        """
        stamp, failure = await asyncio.to_thread(self._read_stamp), self._failure  # the file system may hang
        if stamp is None or stamp == self._stamp:
            return
        if failure is not None and failure.stamp == stamp and time.monotonic() < failure.retry_at:
            return
        try:
            await self.load()
        except Exception as error:  # of the file system or a driver, too: other models are still watched
            self._count_failure(stamp, error)
        else:
            self._metrics.reloads.inc()
            _log.info("model %r now serves the replaced bundle", self.name)

    async def check_failures(self) -> None:
        """Find out whether a model that fails on requests is broken, or works again."""
        await asyncio.to_thread(self.engine.check_failures)

    def _count_failure(self, stamp: tuple[int, ...], error: Exception) -> None:
        """Plan the next attempt to load a replacement; log what is new."""
        last = self._failure if self._failure is not None and self._failure.stamp == stamp else None
        first_s, most_s = _RETRY_S
        wait_s = first_s if last is None else min(2 * last.wait_s, most_s)
        self._failure = _Failure(stamp, str(error), wait_s, time.monotonic() + wait_s)
        if last is None or last.message != str(error):
            self._metrics.reload_failures.inc()
            _log.error(
                "the replaced bundle of model %r cannot be loaded; the old one stays, and it is tried again: %s",
                self.name, error, exc_info=not isinstance(error, BertError),
            )  # fmt: skip

    def close(self) -> None:
        """Accept no more requests; those that wait are still answered."""
        for engine in self._engines:
            engine.close()

    def join(self, timeout_s: float) -> None:
        """Wait until the model has been closed and computes nothing any more."""
        for engine in self._engines:
            engine.join(timeout_s)

    @property
    def _engines(self) -> list[Engine]:
        """All engines that may compute something."""
        return self._retired if self._engine is None else [*self._retired, self._engine]

    def _read_stamp(self) -> tuple[int, ...] | None:
        """Return what differs between two bundles at the same path; `None` while there is none."""
        try:
            status = (self._bundle / MANIFEST_NAME).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


class Models(Mapping[str, ServedModel]):
    """The models of a server by name."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self._models = {
            name: ServedModel(name, bundle, settings.engine, metrics) for name, bundle in settings.bundles.items()
        }

    def __getitem__(self, name: str) -> ServedModel:
        return self._models[name]

    def __iter__(self) -> Any:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def ready(self) -> bool:
        """Whether all models are loaded."""
        return all(served.ready for served in self.values())

    def check_working(self) -> None:
        """Raise `ModelBrokenError` where a model is broken."""
        for served in self.values():
            served.check_working()

    def resolve(self, name: str | None = None) -> ServedModel:
        """Return the model of a name; where a single one is served, any name means it.

        Raises:
            ModelNotFoundError: several are served, and none has this name.
        """
        if len(self._models) == 1:
            return next(iter(self._models.values()))
        if name is None or name not in self._models:
            found = "no name" if name is None else f"{name!r:.100}"
            raise ModelNotFoundError(f"expected one of the models {', '.join(self._models)}, found {found}")
        return self._models[name]
