"""What a task is to the rest of the project: a head's settings, its answers and its metric."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from bert_runtime.errors import BundleError, InputError
from bert_runtime.numerics import FloatArray
from bert_runtime.records import Record

__all__ = [
    "Example",
    "Outputs",
    "Result",
    "Task",
    "TextInput",
    "Vocabulary",
    "WindowedText",
    "max_abs_difference",
    "stack_single_window",
]

WindowedText = Literal["text", "text_pair"]
"""The text of an input that is read in overlapping windows where it is longer than the model reads at once."""


class TextInput(NamedTuple):
    """What a model reads in one row: a text, or a pair of texts."""

    text: str
    text_pair: str | None = None


class Example(NamedTuple):
    """One labelled example of a data file. `target` is what `Task.score` compares with; its type is the task's."""

    inputs: tuple[TextInput, ...]
    target: Any


class Vocabulary(Protocol):
    """What a task may ask of the tokenizer: tokens to text and back."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""

    def token_ids(self, word: str) -> list[int]:
        """The tokens of a word on its own, without special tokens; one where the vocabulary has it."""


class Outputs(NamedTuple):
    """What a model computed for one input, before post-processing."""

    input: TextInput
    encodings: tuple[Encoding, ...]
    """The input as tokens: one window, or several where a task reads long texts so."""
    arrays: tuple[FloatArray, ...]
    """The raw output of each window without padding, see `Task.split`."""
    vocabulary: Vocabulary

    @property
    def flat(self) -> FloatArray:
        """All numbers of all windows [n]."""
        return np.concatenate([row.ravel() for row in self.arrays])


def stack_single_window(outputs: Sequence[Outputs]) -> FloatArray:
    """The raw outputs of inputs that were read in one window each, and whose outputs have one shape: [N, …]."""
    return np.stack([each.arrays[0] for each in outputs])


def max_abs_difference(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
    """Largest absolute difference of any two matching numbers; NaN if any is."""
    differences = [np.abs(each.flat - other.flat) for each, other in zip(outputs, reference, strict=True)]
    return float(np.max(np.concatenate(differences), initial=0.0))


class Result(ABC):
    """One answer: what was decided, and what it was decided from."""

    __slots__ = ()

    @abstractmethod
    def to_dict(self) -> Any:
        """The JSON shape that the Hugging Face pipeline of the same task gives: an object, or a list of objects."""

    @abstractmethod
    def summary(self) -> str:
        """The answer on one line, for a person to read."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Settings of one task's head, shared by trainer, exporter and runtime.

    A task turns raw outputs into results and measures how good they are. It knows neither torch nor ONNX.
    """

    name: ClassVar[str]
    """The task's name on the command line, in manifests and in the Hugging Face hub's terms."""

    output: ClassVar[str]
    """Name of the graph's output."""

    windows: ClassVar[WindowedText | None] = None
    """The text that is read in overlapping windows; `None` where inputs are truncated."""

    @property
    def options(self) -> tuple[str, ...]:
        """Fields that only decide how outputs are decoded, and so may be changed without another export."""
        return ()

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
    def reads_first_token_only(self) -> bool:
        """Whether the head reads nothing but the hidden vector of each sequence's first token."""

    def split(self, array: FloatArray, encodings: Sequence[Encoding]) -> list[FloatArray]:
        """The graph's output for a batch as one array per encoding, without padding.

        By default the output has one row per encoding [B, …].
        """
        return list(array)

    def graph_output(self, computed: Any, input_ids: Any) -> Any:
        """What the exported graph gives, of what the PyTorch model computes for `input_ids` [B, S]: all, by default.

        Arrays, or tensors.
        """
        return computed

    def valid_probe_ids(self, input_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Random token ids [B, S], changed where the task would have nothing to compute in them."""
        return input_ids

    def input_error(self, value: TextInput, encodings: Sequence[Encoding]) -> str | None:
        """What keeps an input from being answered, for an error message; `None` if nothing does."""
        return None

    @abstractmethod
    def decode(self, outputs: Outputs) -> Result:
        """The answer for one input."""

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        """What a row of a data file has to be answered, labels or no labels: a text or a pair, by default one input.

        Raises `DataError` for a row without the fields that the task reads; others are left alone.
        """
        return (TextInput(record.text(), record.optional_text("text_pair")),)

    @abstractmethod
    def example(self, record: Record) -> Example:
        """A row of a data file as an example; raises `DataError` naming file and line where it does not fit."""

    def target_error(self, example: Example, windows: Sequence[Encoding], vocabulary: Vocabulary) -> str | None:
        """Why an example's target cannot be the answer to its first input, read in `windows`; `None` if it can."""
        return None

    @abstractmethod
    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """Metrics of the outputs for the inputs of `examples`, one after another."""

    def with_tuned_threshold(self, metrics: Mapping[str, float]) -> Self:
        """The task with the settings that its metrics on a labelled file found best, such as a threshold."""
        return self

    @abstractmethod
    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        """How faithful `outputs` are to `reference`, for the same inputs: what quantization changed, without labels."""

    def with_options(self, **options: Any) -> Self:
        """The task with other values for some of `options`; raises `InputError` for what it does not have or take."""
        unknown = sorted(set(options) - set(self.options))
        if unknown:
            known = f"the options {', '.join(self.options)}" if self.options else "no options"
            raise InputError(f"{self.name} has {known}, found {', '.join(unknown)}")
        try:
            return replace(self, **{name: tuple(x) if isinstance(x, list) else x for name, x in options.items()})
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from None

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
