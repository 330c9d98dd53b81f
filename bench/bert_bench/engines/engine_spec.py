"""What an engine is to the benchmark, and what its worker process needs to know to open it.

Most engines are a `bert_runtime.model.Model` with another session: tokenization, padding, batching and decoding are the
runtime's own, so what differs is the forward pass alone. A product that reads texts itself (a pipeline) is called as it
stands, and timed from text to answer only.

The worker may be another Python with other packages: these modules import NumPy, tokenizers and `bert_runtime`, and
what an engine needs besides inside the methods that need it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

from bert_bench.engines.engine import Engine, ModelEngine, TextEngine
from bert_bench.workloads import Case
from bert_runtime import Manifest
from bert_runtime.cpu.session import Session
from bert_runtime.loading import bundle_tokenizer
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import Batch

__all__ = [
    "BATCH_TOKEN_CHOICES",
    "CheckpointSpec",
    "ComparedEngineSpec",
    "Engine",
    "EngineConfig",
    "EngineSpec",
    "ModelEngine",
    "PreparedSpec",
    "TextEngine",
    "TextEngineSpec",
    "folder_bytes",
]

BATCH_TOKEN_CHOICES = (1024, 512, 256, 128, 2048)
"""Padded tokens per run that a peer chooses from; the first holds where it does not choose."""

Forward = Callable[[Batch], FloatArray]
"""Token ids to raw outputs [B, …]."""


@dataclass(frozen=True, kw_only=True)
class EngineSpec(ABC):
    """What a worker process needs to know to open an engine. Heavy imports happen in `open`, nowhere else."""

    bundle: Path
    threads: int
    max_batch_tokens: int | None
    """`None` for what suits the engine."""

    environment: ClassVar[str | None] = None
    """The requirements file that it runs in, by name; `None` for the environment of this process."""

    own: ClassVar[bool] = False
    """Whether it is this project's, and so takes the cases that look inside a call."""

    stages: ClassVar[frozenset[str]] = frozenset(("model", "tokenization", "end_to_end", "concurrent"))
    """Kinds of cases that it can be timed on."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The engine's name in reports."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What the engine is, for a reader who does not know the name."""

    @property
    def precision(self) -> str:
        """What its matrix products multiply: `fp32`, `bf16` or `int8`."""
        return "fp32"

    @property
    def is_fp32(self) -> bool:
        """Whether its outputs must equal the reference's up to rounding."""
        return self.precision == "fp32"

    def accepts(self, case: Case) -> bool:
        """Whether the case is meant for this engine."""
        return case.stage in self.stages and (self.own or not case.bundle_only)

    @abstractmethod
    def open(self) -> Engine:
        """Loads the model; raises a `BertError` where it cannot."""


@dataclass(frozen=True)
class _ForwardSession:
    """Stands where a model has its `Session`."""

    run: Forward
    threads: int


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """One member of a family of engines: what the registry lists, and what its class reads its settings from."""

    name: str
    label: str
    precision: str = "fp32"
    exact: bool = True
    """Whether its outputs must equal the reference's up to rounding, where its precision is `fp32`."""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ComparedEngineSpec(EngineSpec):
    """Another way to run the model of the bundle."""

    config: EngineConfig

    tasks: ClassVar[tuple[str, ...] | None] = None
    """The tasks it can do; `None` for all."""

    @property
    def name(self) -> str:
        """The config's."""
        return self.config.name

    @property
    def label(self) -> str:
        """The config's."""
        return self.config.label

    @property
    def precision(self) -> str:
        """The config's."""
        return self.config.precision

    @property
    def is_fp32(self) -> bool:
        """Not of configs that approximate."""
        return self.config.precision == "fp32" and self.config.exact

    @abstractmethod
    def open_session(self, manifest: Manifest) -> tuple[Forward, int]:
        """Token ids to raw outputs [B, …], and the size on disk in bytes."""

    def open(self) -> Engine:
        """A model whose session is the one that `open_session` gives."""
        manifest = Manifest.read(self.bundle)
        tokenizer = bundle_tokenizer(self.bundle, manifest)
        run, size_bytes = self.open_session(manifest)
        session = cast("Session", _ForwardSession(run, self.threads))
        model = Model(
            manifest.task, tokenizer, session, max_batch_tokens=self.max_batch_tokens or BATCH_TOKEN_CHOICES[0]
        )
        return ModelEngine(model, size_bytes, () if self.max_batch_tokens else BATCH_TOKEN_CHOICES)


@dataclass(frozen=True, kw_only=True)
class CheckpointSpec(ComparedEngineSpec):
    """A peer that reads the checkpoint."""

    checkpoint: Path


@dataclass(frozen=True, kw_only=True)
class PreparedSpec(CheckpointSpec):
    """A peer that makes files of its own from the checkpoint before it can be opened."""

    folder: Path | None = None
    """Where they are; `None` until they have been made."""

    prepare_environment: ClassVar[str | None] = None
    """The environment that `prepare` runs in, where it is not `environment`."""

    calibrated: ClassVar[bool] = False
    """Whether `prepare` reads the calibration texts."""

    @property
    def artifact_config(self) -> EngineConfig:
        """The config whose files these are: its own, or another's that makes the same."""
        return self.config

    @property
    def files(self) -> Path:
        """The folder of what was prepared."""
        assert self.folder is not None, f"{self.name} was opened before it was prepared"
        return self.folder

    @abstractmethod
    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        """Writes what `open` reads into the empty `folder`; `texts` are for calibration."""


@dataclass(frozen=True, kw_only=True)
class TextEngineSpec(PreparedSpec):
    """A peer that reads texts itself: it is timed from text to answer only."""

    stages: ClassVar[frozenset[str]] = frozenset(("end_to_end", "concurrent"))

    def open_session(self, manifest: Manifest) -> tuple[Forward, int]:
        """Never asked for."""
        raise NotImplementedError(f"{self.name} has no step from token ids to outputs")

    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        """Nothing, where the product reads the checkpoint itself."""

    @abstractmethod
    def open_text_engine(self, manifest: Manifest) -> TextEngine:
        """Loads the product."""

    def open(self) -> Engine:
        """The product as it stands."""
        return self.open_text_engine(Manifest.read(self.bundle))


def folder_bytes(folder: Path, *suffixes: str) -> int:
    """Size of the files below `folder` whose names end so; of all without suffixes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if not suffixes or path.name.endswith(suffixes))
