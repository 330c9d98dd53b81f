"""A served cascade: two models with a queue each, of which the large one reads what the small one is not sure of."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bert_runtime import load
from bert_runtime.batching.streaming import EncodedInput
from bert_runtime.cascade import Cascade
from bert_runtime.cascade.task import MODELS
from bert_runtime.inputs import SingleInput
from bert_runtime.tasks import Outputs
from bert_runtime.zero_shot import ZeroShotClassifier
from bert_serve.metrics import Metrics, ModelMetrics
from bert_serve.serving.caller import Caller
from bert_serve.serving.engine import INLINE_CHARACTERS, Engine
from bert_serve.serving.sizes import num_characters
from bert_serve.serving.token_queue import Reservation
from bert_serve.settings import EngineSettings

__all__ = ["CascadeEngine", "open_engine"]


class CascadeEngine(Engine):
    """The engine of the small model, which passes on what this one is not sure of to the engine of the large one.

    Texts of many requests are joined in each of the two. A request that the small model alone answers never waits for
    the large one.

    Args:
        cascade: the loaded cascade.
        settings: how the work of each model is joined.
        small: where the small model's work is counted.
        large: where the large model's work is counted.

    Raises:
        BundleError: a model computes something else than its self-test says.
    """

    def __init__(self, cascade: Cascade, settings: EngineSettings, small: ModelMetrics, large: ModelMetrics) -> None:
        super().__init__(cascade.small, settings, small)
        self.model = self._cascade = cascade
        self.zero_shot_classifier = partial(ZeroShotClassifier, cascade)  # which refuses it
        try:
            self._large = Engine(cascade.large, settings, large)
        except BaseException:
            self.queue.close()  # its thread would wait forever, and keep the small model
            raise
        self._num_requests = 0
        self._closed = False

    async def encode(
        self, inputs: Sequence[SingleInput], *, truncate: bool = True, options: Mapping[str, Any] | None = None
    ) -> list[EncodedInput]:
        """Tokenize inputs for the small model, see `Engine.encode`; the limits hold for the large one's tokens, too."""
        encoded = await super().encode(inputs, truncate=truncate, options=options)
        if not truncate or self._settings.max_tokens_per_text is not None:
            self._large.limits.check_lengths(await self._encode_for_large(encoded), truncate=truncate)
        return encoded

    async def outputs(
        self, encoded: Sequence[EncodedInput], caller: Caller | None = None, reservation: Reservation | None = None
    ) -> list[Outputs]:
        if not encoded:
            return []
        self._num_requests += 1
        try:
            found, unsure = self._cascade.judge_small(await super().outputs(encoded, caller, reservation))
            if unsure:
                rest = await self._encode_for_large([encoded[index] for index in unsure])
                outputs = self._cascade.mark_large(await self._large.outputs(rest, caller))
                for index, output in zip(unsure, outputs, strict=True):
                    found[index] = output
            return found
        finally:
            self._num_requests -= 1
            self._close_large()

    async def _encode_for_large(self, encoded: Sequence[EncodedInput]) -> Sequence[EncodedInput]:
        if len(encoded) == 1 and num_characters([item.input for item in encoded]) <= INLINE_CHARACTERS:
            return self._cascade.encode_for_large(encoded)
        return await asyncio.to_thread(self._cascade.encode_for_large, encoded)

    @property
    def broken(self) -> bool:
        return super().broken or self._large.broken

    def check_failures(self) -> None:
        super().check_failures()
        self._large.check_failures()

    def close(self) -> None:
        super().close()
        self._closed = True
        self._close_large()

    def join(self, timeout_s: float) -> bool:
        return all([super().join(timeout_s), self._large.join(timeout_s)])

    def _close_large(self) -> None:
        """Close the large model's queue once no request that the small one has read can need it any more."""
        if self._closed and not self._num_requests:
            self._large.close()


def open_engine(bundle: Path, settings: EngineSettings, name: str, metrics: Metrics) -> Engine:
    """Load a bundle or a cascade, and return its engine.

    Args:
        bundle: its directory.
        settings: how it is loaded and joined.
        name: the name that clients use. The models of a cascade are counted as `NAME/small` and `NAME/large`.
        metrics: where it is counted.

    Raises:
        BundleError: it cannot be loaded, or computes something else than its self-test says.
    """
    model = load(bundle, **settings.load_options)
    if isinstance(model, Cascade):
        return CascadeEngine(model, settings, *(metrics.of_model(f"{name}/{part}") for part in MODELS))
    return Engine(model, settings, metrics.of_model(name))
