"""Inputs, labelled examples, raw outputs and results of tasks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from tokenizers import Encoding

from bert_runtime.numerics import FloatArray
from bert_runtime.tasks.vocabulary import Vocabulary

__all__ = [
    "Example", "Outputs", "PromptedText", "Result", "TextInput", "WindowedText", "max_abs_difference",
    "stack_single_window",
]  # fmt: skip

WindowedText = Literal["text", "text_pair"]
"""The text of an input that is split into overlapping windows where it exceeds the model's maximum length."""


class TextInput(NamedTuple):
    """One input of a model: a text or a pair of texts."""

    text: str
    text_pair: str | None = None


class PromptedText(TextInput):
    """A text that has its prompt: `Task.prefixed` puts none in front of it."""

    __slots__ = ()


class Example(NamedTuple):
    """A labelled example of a data file: its inputs, and the target that `Task.score` compares predictions with.

    The target's type depends on the task.
    """

    inputs: tuple[TextInput, ...]
    target: Any


class Outputs(NamedTuple):
    """Raw outputs of a model for one input, before post-processing."""

    input: TextInput
    encodings: tuple[Encoding, ...]
    """The tokenized input: one window, or several where the task splits long texts."""
    arrays: tuple[FloatArray, ...]
    """The raw output for each window, without padding; see `Task.split`."""
    vocabulary: Vocabulary

    @property
    def truncated(self) -> bool:
        """Whether truncation dropped tokens of the input, which is not split into windows."""
        return len(self.encodings) == 1 and bool(self.encodings[0].overflowing)

    @property
    def flat(self) -> FloatArray:
        """All values of all windows [N]."""
        return np.concatenate([array.ravel() for array in self.arrays])


def stack_single_window(outputs: Sequence[Outputs]) -> FloatArray:
    """Stack the outputs of N inputs that have one window each, all of one shape […], to an array [N, …]."""
    return np.stack([output.arrays[0] for output in outputs])


def max_abs_difference(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
    """Return the largest absolute difference between two models' outputs for the same inputs; NaN if any value is."""
    differences = [np.abs(found.flat - expected.flat) for found, expected in zip(outputs, reference, strict=True)]
    return float(np.max(np.concatenate(differences), initial=0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Result(ABC):
    """The prediction for one input: the decision, and the scores that it was made from."""

    truncated: bool = field(default=False, repr=False, kw_only=True)
    """Whether the prediction is for a part of the input, since it has more tokens than the model reads."""

    @abstractmethod
    def to_dict(self) -> Any:
        """Return the JSON value, in the shape of the Hugging Face pipeline of the same task: an object or a list.

        An object also has `"truncated": true` where the input was.
        """

    @abstractmethod
    def summary(self) -> str:
        """Return the prediction as one line of text."""

    def _marks(self) -> dict[str, Any]:
        """Return what `to_dict` adds to an object: whether the input was truncated."""
        return {"truncated": True} if self.truncated else {}
