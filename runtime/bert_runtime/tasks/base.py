"""The interface of tasks: settings of a model's head, decoding of its outputs, and metrics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from bert_runtime.errors import BundleError, InputError
from bert_runtime.numerics import FloatArray
from bert_runtime.records import Record
from bert_runtime.tasks.values import Example, Outputs, PromptedText, Result, TextInput, WindowedText
from bert_runtime.tasks.vocabulary import Vocabulary

__all__ = ["Task"]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Settings of a model's head, shared by the trainer, the exporter and the runtime.

    A task decodes raw outputs into results and computes metrics. It depends on neither torch nor ONNX.
    """

    name: ClassVar[str]
    """Name of the task on the command line, in manifests and on the Hugging Face hub."""

    output: ClassVar[str]
    """Name of the graph's output."""

    has_labels: ClassVar[bool] = True
    """Whether data files can have labels of the task, to train it and to measure it by."""

    windows: ClassVar[WindowedText | None] = None
    """The text that is split into overlapping windows; `None` where long inputs are truncated."""

    has_output_per_token: ClassVar[bool] = False
    """Whether outputs are [B, S, …], of which those of padding mean nothing."""
    repeats_texts: ClassVar[bool] = False
    """Whether inputs are pairs of which texts repeat, such as a query with its documents: each is tokenized once."""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the settings that affect decoding only, and so can be changed without another export."""
        return ()

    @property
    @abstractmethod
    def metric(self) -> str:
        """Key of the value of `score` that selects the best checkpoint and accepts INT8; higher is better."""

    def deciding_metric(self, metrics: Mapping[str, float]) -> str:
        """Return which of measured metrics decides between variants: `metric`, or that of another kind of data set."""
        return self.metric

    def metric_for(self, examples: Sequence[Example]) -> str:
        """Return which metric of `score` decides for these examples: `metric`, or that of another kind of rows."""
        return self.metric

    @property
    @abstractmethod
    def agreement_floor(self) -> tuple[str, float]:
        """Key of `agreement` and the minimum of its value with which INT8 may be a bundle's default."""

    @property
    @abstractmethod
    def reads_first_token_only(self) -> bool:
        """Whether the head uses the hidden state of each sequence's first token only."""

    @property
    def splits_long_inputs(self) -> bool:
        """Whether inputs that exceed the model's maximum length are split into windows instead of truncated."""
        return self.windows is not None

    @property
    def text_prefix(self) -> str:
        """Text in front of the first text of every input, such as an embedding's prompt."""
        return ""

    def prefixed(self, inputs: Sequence[TextInput]) -> list[TextInput]:
        """Return inputs with `text_prefix`, as they are tokenized; `PromptedText` stays as it is."""
        if not (prefix := self.text_prefix):
            return [*inputs]
        return [item if isinstance(item, PromptedText) else item._replace(text=prefix + item.text) for item in inputs]

    @property
    def output_width(self) -> int | None:
        """Size of the output's last axis, such as the number of labels; `None` where the settings do not say."""
        return None

    def num_vectors(self, encoding: Encoding) -> int:
        """Return how many vectors of `output_width` a sequence's output has: one, or one for each token."""
        return len(encoding) if self.has_output_per_token else 1

    def split(self, array: FloatArray, encodings: Sequence[Encoding]) -> list[FloatArray]:
        """Split the graph's output for a batch into one array per encoding, without padding.

        Args:
            array: the output, by default one entry per sequence [B, …].
            encodings: the B encodings of the batch.

        Returns:
            B arrays.
        """
        return list(array)

    def graph_output(self, computed: Any, input_ids: Any) -> Any:
        """Select from the PyTorch model's output what the exported graph returns; everything by default.

        Args:
            computed: the model's output, an array or a tensor.
            input_ids: token ids [B, S].

        Returns:
            An array or a tensor, as `computed`.
        """
        return computed

    def valid_probe_ids(self, input_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Change random token ids [B, S] such that the task has something to compute; by default nothing changes."""
        return input_ids

    def input_error(self, value: TextInput, encodings: Sequence[Encoding]) -> str | None:
        """Return why the task cannot process an input, tokenized as `encodings`; `None` if it can."""
        return None

    @abstractmethod
    def decode(self, outputs: Outputs) -> Result:
        """Decode the raw outputs for one input."""

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        """Return the model inputs of a row of a data file: by default one text or pair of texts.

        Labels and other fields that the task does not read are ignored.

        Raises:
            DataError: the row lacks a field that the task reads.
        """
        return (TextInput(record.text(), record.optional_text("text_pair")),)

    @abstractmethod
    def example(self, record: Record) -> Example:
        """Convert a row of a data file to a labelled example.

        Raises:
            DataError: the row does not fit the task; the message names file and line.
        """

    def check_rows(self, records: Sequence[Record]) -> None:
        """Raise `DataError` unless the rows of a labelled file are of one kind, where the task has several."""
        return

    def target_error(self, example: Example, windows: Sequence[Encoding], vocabulary: Vocabulary) -> str | None:
        """Return why an example's target cannot be predicted for its first input; `None` if it can.

        Args:
            example: the example.
            windows: the first input as tokens.
            vocabulary: the tokenizer's vocabulary.
        """
        return None

    @abstractmethod
    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """Compute the task's metrics.

        Args:
            outputs: the model's outputs for the inputs of all examples, in order.
            examples: the labelled examples.

        Returns:
            The metrics by name; `metric` is one of the keys.
        """

    def probability_quality(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """Compute how well probabilities fit the truth, lower is better; nothing where the task has none."""
        return {}

    def with_tuned_threshold(self, metrics: Mapping[str, float]) -> Self:
        """Return the task with the threshold that `score` found best on a labelled file, where the task has one."""
        return self

    @abstractmethod
    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        """Measure without labels how close a quantized model's outputs are to the reference's for the same inputs.

        Args:
            outputs: outputs of the model to judge.
            reference: outputs of the FP32 model.

        Returns:
            Measures by name; the first item of `agreement_floor` is one of the keys.
        """

    def with_options(self, /, **options: Any) -> Self:
        """Return the task with other values for some of `options`.

        Raises:
            InputError: an option is unknown, or its value is out of range or of the wrong type.
        """
        unknown = sorted(set(options) - set(self.options))
        if unknown:
            known = f"the options {', '.join(self.options)}" if self.options else "no options"
            raise InputError(f"{self.name} has {known}, found {', '.join(unknown)}")
        try:
            return replace(self, **{name: tuple(x) if isinstance(x, list) else x for name, x in options.items()})
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from None

    def sample_inputs(self, texts: Sequence[str]) -> list[TextInput]:
        """Make inputs of the kind that the task reads from plain texts, to measure drift without a labelled file."""
        return [TextInput(text) for text in texts]

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, with the task's name under `name`."""
        return {"name": self.name, **asdict(self)}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """Create a task from the settings that `to_dict` returned; unknown keys are ignored.

        Raises:
            BundleError: a setting is missing or malformed.
        """
        known = {name: settings[name] for name in (part.name for part in fields(cls)) if name in settings}
        try:
            return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()})
        except (TypeError, ValueError) as error:
            raise BundleError(f"settings of task {cls.name!r} are malformed: {error}") from None
