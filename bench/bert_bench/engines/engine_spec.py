"""Engine specifications: what a worker process needs to open an engine.

Most engines are a `bert_runtime.model.Model` with another inference session. Tokenization, padding, batching and
decoding are the runtime's, so only the forward pass differs. An engine that reads texts itself (a pipeline) is called
as it stands and is timed end to end only.

A worker may run in another Python environment with other packages. Modules of this package therefore import NumPy,
tokenizers and `bert_runtime` only; every other import belongs inside the method that needs it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from bert_bench.engines.engine import Engine, ModelEngine, TextEngine
from bert_bench.workloads import Case
from bert_runtime import Manifest
from bert_runtime.cpu.parallel_sessions import ParallelSessions
from bert_runtime.loading import bundle_tokenizer
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.runner import FunctionRunner
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import Batch

__all__ = [
    "BATCH_TOKEN_CHOICES",
    "CheckpointSpec",
    "ComparedEngineSpec",
    "EngineConfig",
    "EngineSpec",
    "Forward",
    "PreparedSpec",
    "TextEngineSpec",
    "folder_bytes",
]

BATCH_TOKEN_CHOICES = (1024, 512, 256, 128, 2048)
"""Padded tokens per batch that a compared engine chooses from by trial; the first is the default elsewhere."""

Forward = Callable[[Batch], FloatArray]
"""Forward pass: token ids [B, S] to raw outputs [B, …]."""


@dataclass(frozen=True, kw_only=True)
class EngineSpec(ABC):
    """Settings with which a worker process opens an engine.

    They are pickled to the worker; heavy imports happen in `open` only.
    """

    bundle: Path
    threads: int
    max_batch_tokens: int | None
    """Padded tokens per batch; `None` for the engine's own choice."""

    environment: ClassVar[str | None] = None
    """Name of the requirements file of its environment; `None` for the environment of this process."""

    is_bundle: ClassVar[bool] = False
    """Whether it runs a variant of the bundle; only such engines are timed on the stages inside a call."""

    stages: ClassVar[frozenset[str]] = frozenset(("model", "tokenization", "end_to_end", "concurrent"))
    """Stages (see `Case.stage`) that it can be timed on."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The engine's name in reports."""

    @property
    @abstractmethod
    def label(self) -> str:
        """A description for readers who do not know the name."""

    @property
    def precision(self) -> str:
        """Precision of its matmuls: `fp32`, `fp16`, `bf16` or `int8`."""
        return "fp32"

    @property
    def is_fp32(self) -> bool:
        """Whether its outputs must equal the reference's up to rounding."""
        return self.precision == "fp32"

    def accepts(self, case: Case) -> bool:
        """Return whether the engine is timed on the case."""
        return case.stage in self.stages and (self.is_bundle or not case.bundle_only)

    @abstractmethod
    def open(self) -> Engine:
        """Load the model.

        Raises:
            BertError: the engine cannot run.
        """


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Configuration of one engine in a family that shares an `EngineSpec` class."""

    name: str
    label: str
    precision: str = "fp32"
    exact: bool = True
    """Whether outputs must equal the reference's up to rounding, given `precision="fp32"`; false for approximations."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Options that the spec class reads."""


@dataclass(frozen=True, kw_only=True)
class ComparedEngineSpec(EngineSpec):
    """An engine that the bundle is compared with: another way to run the same checkpoint."""

    config: EngineConfig

    tasks: ClassVar[tuple[str, ...] | None] = None
    """Tasks that it supports; `None` for all."""

    @property
    def name(self) -> str:
        """The configuration's name."""
        return self.config.name

    @property
    def label(self) -> str:
        """The configuration's label."""
        return self.config.label

    @property
    def precision(self) -> str:
        """The configuration's precision."""
        return self.config.precision

    @property
    def is_fp32(self) -> bool:
        """Whether it computes in FP32 without approximations."""
        return self.config.precision == "fp32" and self.config.exact

    @abstractmethod
    def open_session(self, manifest: Manifest) -> tuple[Forward, int]:
        """Return the forward pass and the size of graph and weights on disk in bytes."""

    def open_streams(self, manifest: Manifest) -> Forward | None:
        """Return a forward pass that as many callers as there are threads use at a time, on a thread each.

        `None` where the library has none.
        """
        return None

    def open(self) -> Engine:
        """Open a runtime model whose session is the engine's forward pass."""
        manifest = Manifest.read(self.bundle)
        tokenizer = bundle_tokenizer(self.bundle, manifest)
        forward, size_bytes = self.open_session(manifest)
        runner = FunctionRunner(forward, self.threads)
        build = partial(Model, manifest.task, tokenizer, runner)
        if self.max_batch_tokens:
            return ModelEngine(build(max_batch_tokens=self.max_batch_tokens), size_bytes)

        def open_streams() -> Model | None:
            streams = self.open_streams(manifest) if self.threads > 1 else None
            if streams is None:
                return None
            parallel = ParallelSessions(runner, lambda: FunctionRunner(streams, 1), self.threads)
            return build(parallel, max_batch_tokens=BATCH_TOKEN_CHOICES[0])

        model = build(max_batch_tokens=BATCH_TOKEN_CHOICES[0])
        return ModelEngine(model, size_bytes, BATCH_TOKEN_CHOICES, open_streams)


@dataclass(frozen=True, kw_only=True)
class CheckpointSpec(ComparedEngineSpec):
    """A compared engine that reads the checkpoint."""

    checkpoint: Path


@dataclass(frozen=True, kw_only=True)
class PreparedSpec(CheckpointSpec):
    """A compared engine that converts the checkpoint to files of its own before it can be opened."""

    folder: Path | None = None
    """Folder of the converted files; `None` until they have been written."""

    prepare_environment: ClassVar[str | None] = None
    """Environment that `prepare` runs in, if not `environment`."""

    needs_calibration: ClassVar[bool] = False
    """Whether `prepare` reads the calibration texts for INT8."""

    @property
    def artifact_config(self) -> EngineConfig:
        """The configuration whose files these are: its own, or another's that writes the same files."""
        return self.config

    @property
    def files(self) -> Path:
        """Folder of the converted files, which must exist."""
        assert self.folder is not None, f"{self.name} was opened before it was prepared"
        return self.folder

    @abstractmethod
    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        """Write the files that `open` reads.

        Args:
            folder: an empty folder.
            texts: calibration texts for static quantization.
        """


@dataclass(frozen=True, kw_only=True)
class TextEngineSpec(PreparedSpec):
    """A compared engine that reads texts itself and is timed end to end only."""

    stages: ClassVar[frozenset[str]] = frozenset(("end_to_end", "concurrent"))

    def open_session(self, manifest: Manifest) -> tuple[Forward, int]:
        """Raise: such an engine has no forward pass on token ids."""
        raise NotImplementedError(f"{self.name} has no step from token ids to outputs")

    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        """Write nothing, by default: the library reads the checkpoint itself."""

    @abstractmethod
    def open_text_engine(self, manifest: Manifest) -> TextEngine:
        """Load the library's model."""

    def open(self) -> Engine:
        """Load the library's model."""
        return self.open_text_engine(Manifest.read(self.bundle))


def folder_bytes(folder: Path, *suffixes: str) -> int:
    """Return the total size of the files below `folder` whose names end in one of `suffixes`; of all without any."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if not suffixes or path.name.endswith(suffixes))
