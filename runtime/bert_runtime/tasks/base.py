"""What a task is to the rest of the project: a head's settings, its answers and its metric."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

from bert_runtime.errors import BundleError
from bert_runtime.numerics import FloatArray
from bert_runtime.records import Record

__all__ = ["Example", "FloatArray", "Result", "Task", "TextInput"]


class TextInput(NamedTuple):
    """What a model reads in one row: a text, or a pair of texts."""

    text: str
    text_pair: str | None = None


class Example(NamedTuple):
    """One labelled example of a data file. `target` is what `Task.score` compares with; its type is the task's."""

    inputs: tuple[TextInput, ...]
    target: Any


class Result(ABC):
    """One answer: what was decided, and what it was decided from."""

    __slots__ = ()

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The JSON shape that the Hugging Face pipeline of the same task gives."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Settings of one task's head, shared by trainer, exporter and runtime.

    A task turns raw outputs into results and measures how good they are. It knows neither torch nor ONNX.
    """

    name: ClassVar[str]
    """The task's name on the command line, in manifests and in the Hugging Face hub's terms."""

    output: ClassVar[str]
    """Name of the graph's output: float [B, …], one row per input."""

    @property
    @abstractmethod
    def metric(self) -> str:
        """The key of `score` that decides which checkpoint is best and whether INT8 passes; higher is better."""

    @property
    @abstractmethod
    def agreement_floor(self) -> tuple[str, float]:
        """The key of `agreement` that decides whether INT8 passes without a labelled file, and its least value."""

    @property
    @abstractmethod
    def reads_first_row_only(self) -> bool:
        """Whether the head reads nothing but the hidden vector of each sequence's first token."""

    @abstractmethod
    def decode(self, outputs: FloatArray) -> list[Result]:
        """Raw outputs [B, …] to one result per row, in order."""

    @abstractmethod
    def example(self, record: Record) -> Example:
        """A row of a data file as an example; raises `DataError` naming file and line where it does not fit."""

    @abstractmethod
    def score(self, outputs: FloatArray, examples: Sequence[Example]) -> dict[str, float]:
        """Metrics of raw outputs [N, …], whose rows belong to the inputs of `examples` one after another."""

    @abstractmethod
    def agreement(self, outputs: FloatArray, reference: FloatArray) -> dict[str, float]:
        """How faithful `outputs` are to `reference` (both [N, …]): what quantization changed, without labels."""

    def sample_inputs(self, texts: Sequence[str]) -> list[TextInput]:
        """Inputs of the kind the task reads, made of plain texts: what drift is measured on without a labelled file."""
        return [TextInput(text) for text in texts]

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values, with the task's name."""
        return {"name": self.name, **asdict(self)}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`. Unknown keys are ignored; missing or ill-typed ones raise `BundleError`."""
        known = {key: settings[key] for key in (each.name for each in fields(cls)) if key in settings}
        try:
            return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in known.items()})
        except (TypeError, ValueError) as error:
            raise BundleError(f"settings of task {cls.name!r} are malformed: {error}") from None
