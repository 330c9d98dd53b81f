"""Provide the inputs that INT8 is calibrated on: built-in texts, or those of a file."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Encoding

from bert_export.errors import ExportError
from bert_runtime.batching import length_sorted_batches
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.errors import DataError, InputError
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import Task, TextInput
from bert_runtime.tokenization import Batch, TextTokenizer, pad

__all__ = [
    "MIN_FILE_INPUTS",
    "CalibrationTexts",
    "built_in_calibration",
    "file_calibration",
    "padded_batches",
    "reference_texts",
    "spread",
    "valid_inputs",
]

_MAX_INPUTS = 300
"""Inputs of a file that are used, evenly spread. A judgement, as are the next three: a few seconds of work."""

_MAX_TOKENS = 32768
"""Tokens to calibrate on, in windows evenly spread over the inputs."""

_BATCH_TOKENS = 1024
"""Padded tokens per calibration batch."""

_MIN_OWN_INPUTS = 200
"""Different inputs of a file from which it calibrates alone, and its ranges are trusted with little headroom.

To fewer, built-in texts are added. With 30 rows of BANKING77, that raised the mean cosine of MiniLM's INT8 embeddings
with FP32's from 0.99894 to 0.99904 on other rows, and from 0.9981 to 0.9988 on STS-B."""

_OWN_TEXTS_HEADROOM, _DEFAULT_HEADROOM = 1.15, 1.2
"""How much wider than measured the 8-bit ranges are: with enough of the model's own texts, and otherwise.

A narrow range has finer steps, a wide one saturates less. With own texts, factors from 1 to 1.15 drift alike; a
classifier of BANKING77 drifts least with the built-in ones and 1.3 (`python -m bert_bench.experiments.quantization`, in
bench/results/quantization). On STS-B and BANKING77, MiniLM's embeddings drift 7 % less with 1.15 than with 1.3, and on
repeated words more: the 99th percentile of 1 - cosine is 0.0050 instead of 0.0040. 1.2 lies between."""

MIN_FILE_INPUTS = 30
"""Different inputs of a file below which there is a warning (a judgement). MiniLM calibrated with `export --calibrate`
on five rows of BANKING77 had cosines to FP32 of 0.988 on average and 0.936 at least on a thousand others, and has
0.9990 and 0.9963 with the built-in texts added."""

_HOLD_OUT_EVERY = 3
"""Without a labelled file, every third input is held out from calibration to measure drift on (a judgement)."""

Item = TypeVar("Item")

INPUT_FIELDS = (
    "text", "text_pair", "question", "context", "tokens", "query", "document", "documents", "positive", "negative",
)  # fmt: skip
"""Fields of a row that hold texts or words which a task reads; the others are labels."""


@dataclass(frozen=True, kw_only=True)
class CalibrationTexts:
    """Inputs on which activations are measured before they are quantized."""

    inputs: Sequence[TextInput]
    source: str
    """The file's name, or `built-in texts`."""
    sha256: str
    headroom: float
    """How much wider than measured the 8-bit ranges are to be."""
    built_in_inputs: Sequence[TextInput] = ()
    """Inputs made of the built-in texts, which are added to those of a small file."""

    @property
    def all_inputs(self) -> list[TextInput]:
        """The inputs, those of the built-in texts last."""
        return [*self.inputs, *self.built_in_inputs]

    @property
    def warning(self) -> str | None:
        """The problem with the choice of inputs; `None` where there is none."""
        if not self.built_in_inputs or len(self.inputs) >= MIN_FILE_INPUTS:
            return None
        return (
            f"{self.source} has {len(self.inputs)} different inputs to calibrate INT8 on, fewer than "
            f"{MIN_FILE_INPUTS}: {len(self.built_in_inputs)} built-in ones are added; give a few hundred typical inputs"
        )

    def batches(self, task: Task, tokenizer: TextTokenizer) -> list[Batch]:
        """Tokenize the inputs and batch their windows; evenly spread windows of long inputs are kept."""
        windows = [window for windows in tokenizer.encode(task.prefixed(self.all_inputs)) for window in windows]
        share = min(1.0, _MAX_TOKENS / sum(map(len, windows)))
        return padded_batches(spread(windows, max(1, int(share * len(windows)))), tokenizer)

    def split(self) -> tuple["CalibrationTexts", Sequence[TextInput]]:
        """Split into the inputs to calibrate on and those to measure drift on; too few serve as both."""
        if len(self.all_inputs) < _HOLD_OUT_EVERY:
            return self, self.all_inputs
        own, built_in = (
            [item for i, item in enumerate(inputs) if i % _HOLD_OUT_EVERY or len(inputs) == 1]
            for inputs in (self.inputs, self.built_in_inputs)
        )
        held_out = [item for item in self.all_inputs if item not in {*own, *built_in}]
        return replace(self, inputs=own, built_in_inputs=built_in), held_out

    def record(self, tokens: int) -> dict[str, Any]:
        """Return the calibration as the manifest states it.

        Args:
            tokens: number of tokens that were calibrated on.
        """
        return {
            "source": self.source,
            "sha256": self.sha256,
            "inputs": len(self.all_inputs),
            "tokens": tokens,
            "headroom": self.headroom,
            **({"built_in_inputs": len(self.built_in_inputs)} if self.built_in_inputs else {}),
        }


def reference_texts() -> list[str]:
    """Return the built-in texts."""
    return _reference_file().decode("utf-8").splitlines()


def _reference_file() -> bytes:
    return files("bert_export").joinpath("reference_texts.txt").read_bytes()


def built_in_calibration(task: Task, tokenizer: TextTokenizer) -> CalibrationTexts:
    """Make inputs for a task of the built-in texts.

    Raises:
        ExportError: None of them fits the tokenizer's maximum length.
    """
    inputs = valid_inputs(task, tokenizer, task.sample_inputs(reference_texts()))
    if not inputs:
        raise ExportError(f"{tokenizer.max_tokens} tokens are too few for {task.name}; export with more --max-tokens")
    sha256 = hashlib.sha256(_reference_file()).hexdigest()
    return CalibrationTexts(inputs=inputs, source="built-in texts", sha256=sha256, headroom=_DEFAULT_HEADROOM)


def file_calibration(
    path: Path, columns: Mapping[str, str] | None, task: Task, tokenizer: TextTokenizer
) -> CalibrationTexts:
    """Read different inputs from a file, and add the built-in texts to few of them; labels are not read.

    Args:
        path: the file, in a format of `read_records`. Plain texts become inputs by `Task.sample_inputs`.
        columns: column names by field, as `read_records` takes them; those of label fields are ignored.
        task: the task.
        tokenizer: the model's tokenizer.

    Raises:
        DataError: the file cannot be read.
        ExportError: None of its inputs is valid for the model.
    """
    input_columns = {field: column for field, column in (columns or {}).items() if field in INPUT_FIELDS}
    found = [item for record in read_records(path, input_columns) for item in _inputs_of(record, task)]
    found = spread(list(dict.fromkeys(found)), _MAX_INPUTS)
    inputs = valid_inputs(task, tokenizer, found)
    plain = [item.text for item in found if item.text_pair is None and item not in inputs]
    inputs += valid_inputs(task, tokenizer, task.sample_inputs(plain))
    if not inputs:
        raise ExportError(f"{path}: expected inputs for {task.name}, found {len(found)} that the model cannot read")
    enough = len(inputs) >= _MIN_OWN_INPUTS
    headroom = _OWN_TEXTS_HEADROOM if enough else _DEFAULT_HEADROOM
    added = () if enough else built_in_calibration(task, tokenizer).inputs
    return CalibrationTexts(
        inputs=inputs, source=path.name, sha256=sha256_file(path), headroom=headroom, built_in_inputs=added
    )


def _inputs_of(record: Record, task: Task) -> tuple[TextInput, ...]:
    """Return a record's inputs, or its plain text if the task reads fields that it lacks."""
    try:
        return task.inputs(record)
    except DataError:
        if "text" not in record.fields:
            raise
        return (TextInput(record.text()),)


def valid_inputs(task: Task, tokenizer: TextTokenizer, inputs: Sequence[TextInput]) -> list[TextInput]:
    """Return the inputs that the task accepts at the tokenizer's maximum length."""
    valid = []
    for item in inputs:
        with suppress(InputError):
            (encodings,) = tokenizer.encode([item])
            if task.input_error(item, encodings) is None:
                valid.append(item)
    return valid


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """Return `count` of the items, evenly spread and in order; all if there are fewer."""
    return [items[i * len(items) // count] for i in range(count)] if count < len(items) else list(items)


def padded_batches(windows: Sequence[Encoding], tokenizer: TextTokenizer) -> list[Batch]:
    """Batch windows of like length, with at most `_BATCH_TOKENS` padded tokens each."""
    parts = length_sorted_batches([len(window) for window in windows], _BATCH_TOKENS)
    return [pad([windows[i] for i in part], tokenizer.pad_token_id) for part in parts]
