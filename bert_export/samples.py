"""Inputs that an export measures with: built-in texts, or a file's."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from bert_export.errors import ExportError
from bert_runtime.batching import length_sorted_batches
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.errors import DataError, InputError
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import Task, TextInput
from bert_runtime.tokenization import Batch, TextTokenizer, pad

__all__ = ["CalibrationTexts", "built_in_calibration", "file_calibration", "readable", "reference_texts"]

_MAX_INPUTS = 300
"""Rows of a file that are used, evenly spread."""

_MAX_TOKENS = 32768
"""Tokens that are run, in windows evenly spread over the inputs."""

_BATCH_TOKENS = 1024

_ENOUGH = 200
"""Inputs of the model's own kind that leave little to chance."""

_NARROW, _WIDE = 1.15, 1.3
"""How much wider than measured the 8-bit ranges are: where there are enough of the model's own texts, and elsewhere.
A narrow range gives finer steps, a wide one cuts less off. With own texts, anything from 1 to 1.15 drifts alike; the
built-in ones need the room on BANKING77 (bench/results/quantization, by bert_bench.experiments.quantization)."""

_HELD_OUT = 3
"""Without a labelled file, drift is measured on every third input, and these are not calibrated on."""

_INPUT_FIELDS = ("text", "text_pair", "question", "context", "tokens")


@dataclass(frozen=True, kw_only=True)
class CalibrationTexts:
    """Inputs on which activations are measured before they are quantized."""

    inputs: Sequence[TextInput]
    source: str
    """The file's name, or `built-in texts`."""
    sha256: str
    headroom: float
    """How much wider than measured the 8-bit ranges are to be."""

    def batches(self, tokenizer: TextTokenizer) -> list[Batch]:
        """The inputs' windows as tokens, few enough to run in seconds."""
        windows = [window for windows in tokenizer.encode(self.inputs) for window in windows]
        share = min(1.0, _MAX_TOKENS / sum(map(len, windows)))
        windows = _spread(windows, max(1, int(share * len(windows))))
        parts = length_sorted_batches([len(each) for each in windows], _BATCH_TOKENS)
        return [pad([windows[i] for i in part], tokenizer.pad_token_id) for part in parts]

    def split(self) -> tuple["CalibrationTexts", Sequence[TextInput]]:
        """Most of the inputs to calibrate on, and the others to measure drift on; all for both if there are few."""
        if len(self.inputs) < _HELD_OUT:
            return self, self.inputs
        kept = [each for i, each in enumerate(self.inputs) if i % _HELD_OUT]
        return replace(self, inputs=kept), self.inputs[::_HELD_OUT]


def reference_texts() -> list[str]:
    """The texts that are built in."""
    return _reference_file().decode("utf-8").splitlines()


def _reference_file() -> bytes:
    return files("bert_export").joinpath("reference_texts.txt").read_bytes()


def built_in_calibration(task: Task, tokenizer: TextTokenizer) -> CalibrationTexts:
    """The built-in texts as the task reads them."""
    inputs = readable(task, tokenizer, task.sample_inputs(reference_texts()))
    if not inputs:
        raise ExportError(f"{tokenizer.max_tokens} tokens are too few for {task.name}; export with more --max-tokens")
    sha256 = hashlib.sha256(_reference_file()).hexdigest()
    return CalibrationTexts(inputs=inputs, source="built-in texts", sha256=sha256, headroom=_WIDE)


def file_calibration(
    path: Path, columns: Mapping[str, str] | None, task: Task, tokenizer: TextTokenizer
) -> CalibrationTexts:
    """Inputs of a file, whose labels are not read. Plain texts become what the task reads, see `Task.sample_inputs`.

    `columns` are those of `read_records`; names of labels are skipped. Raises `DataError` for a file that cannot be
    read, and `ExportError` where the model can answer none of its rows.
    """
    named = {ours: theirs for ours, theirs in (columns or {}).items() if ours in _INPUT_FIELDS}
    rows = _spread([each for record in read_records(path, named) for each in _inputs_of(record, task)], _MAX_INPUTS)
    inputs = readable(task, tokenizer, rows)
    plain = [each.text for each in rows if each.text_pair is None and each not in inputs]
    inputs += readable(task, tokenizer, task.sample_inputs(plain))
    if not inputs:
        raise ExportError(
            f"{path}: expected inputs for {task.name}, found {len(rows)} rows that the model cannot answer"
        )
    headroom = _NARROW if len(inputs) >= _ENOUGH else _WIDE
    return CalibrationTexts(inputs=inputs, source=path.name, sha256=sha256_file(path), headroom=headroom)


def _inputs_of(record: Record, task: Task) -> tuple[TextInput, ...]:
    """What a row has to be answered, or its plain text where the task reads other fields."""
    try:
        return task.inputs(record)
    except DataError:
        if "text" not in record.fields:
            raise
        return (TextInput(record.text()),)


def readable(task: Task, tokenizer: TextTokenizer, samples: Sequence[TextInput]) -> list[TextInput]:
    """Those samples that the model can answer at its length."""
    found = []
    for sample in samples:
        with suppress(InputError):
            (encodings,) = tokenizer.encode([sample])
            if task.input_error(sample, encodings) is None:
                found.append(sample)
    return found


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of the items, or all if there are fewer, evenly spread and in order."""
    return [items[i * len(items) // count] for i in range(count)] if count < len(items) else list(items)
