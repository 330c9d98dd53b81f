"""The engines that are compared, and how to open each of them inside its own process.

Every engine is a `bert_runtime.model.Model`: tokenization, padding, batching and decoding are the runtime's own, so
what differs between the engines is the session alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bert_runtime import Manifest, load
from bert_runtime.model import Model, bundle_tokenizer
from bert_runtime.session import Session
from bert_runtime.tasks import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["BundleSpec", "Engine", "EngineSpec", "PeerSpec"]


@dataclass(frozen=True)
class Engine:
    """A model that is ready to answer."""

    model: Model
    size_bytes: int
    """Graph and weights on disk."""


@dataclass(frozen=True, kw_only=True)
class EngineSpec(ABC):
    """What a worker process needs to know to open an engine. Heavy imports happen in `open`, nowhere else."""

    bundle: Path
    threads: int
    max_batch_tokens: int

    @property
    @abstractmethod
    def name(self) -> str:
        """The engine's name in reports."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What the engine is, for a reader who does not know the name."""

    @property
    def is_fp32(self) -> bool:
        """Whether its outputs must equal the reference's up to rounding."""
        return True

    @abstractmethod
    def open(self) -> Engine:
        """Loads the model; raises a `BertError` where it cannot."""


@dataclass(frozen=True, kw_only=True)
class BundleSpec(EngineSpec):
    """One variant of the bundle, as `bert_runtime.load` opens it."""

    precision: str

    @property
    def name(self) -> str:
        """The variant's precision."""
        return self.precision

    @property
    def label(self) -> str:
        """This project and the precision."""
        return f"bert-export {self.precision.upper()}"

    @property
    def is_fp32(self) -> bool:
        """Only of the variant of that precision."""
        return self.precision == "fp32"

    def open(self) -> Engine:
        """Loads the variant; raises `BundleError`."""
        model = load(
            self.bundle, precision=self.precision, device="cpu", threads=self.threads,
            max_batch_tokens=self.max_batch_tokens,
        )  # fmt: skip
        assets = Manifest.read(self.bundle).variant(self.precision).assets
        return Engine(model, sum(asset.size_bytes for asset in assets))


@dataclass(frozen=True)
class _PeerSession:
    """Stands where a model has its `Session`."""

    run: Callable[[Batch], FloatArray]
    threads: int


@dataclass(frozen=True, kw_only=True)
class PeerSpec(EngineSpec):
    """Another way to run the model of the bundle."""

    @abstractmethod
    def open_session(self, manifest: Manifest) -> tuple[Callable[[Batch], FloatArray], int]:
        """Token ids to raw outputs [B, …], and the size on disk in bytes."""

    def open(self) -> Engine:
        """A model whose session is the one that `open_session` gives."""
        manifest = Manifest.read(self.bundle)
        tokenizer = bundle_tokenizer(self.bundle, manifest)
        run, size_bytes = self.open_session(manifest)
        session = cast("Session", _PeerSession(run, self.threads))
        return Engine(Model(manifest.task, tokenizer, session, max_batch_tokens=self.max_batch_tokens), size_bytes)
