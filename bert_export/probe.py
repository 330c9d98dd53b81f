"""Choose the inputs of an export: those that calibrate INT8, those that judge it, and those of the self-tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_export.calibration_texts import CalibrationTexts, built_in_calibration, file_calibration
from bert_export.variants import Probe
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.evaluation import build_examples
from bert_runtime.records import read_records
from bert_runtime.tasks import Example, Task
from bert_runtime.tokenization import TextTokenizer

__all__ = ["LabelledFile", "make_probe", "read_labelled"]

_NUM_SELF_TESTS = 4
"""How many of the reference texts become self-test vectors."""


class LabelledFile(NamedTuple):
    """A labelled file and its examples."""

    path: Path
    examples: list[Example]


def read_labelled(
    evaluate: str | Path | None, columns: Mapping[str, str] | None, task: Task, tokenizer: TextTokenizer
) -> LabelledFile | None:
    """Read the labelled file, if there is one."""
    if evaluate is None:
        return None
    return LabelledFile(Path(evaluate), build_examples(task, tokenizer, read_records(evaluate, columns)))


def make_probe(
    task: Task,
    tokenizer: TextTokenizer,
    labelled: LabelledFile | None,
    calibrate: str | Path | None,
    columns: Mapping[str, str] | None,
) -> Probe:
    """Choose the inputs for calibration, for drift and for self-tests.

    Drift is measured on the labelled file; without one, on calibration inputs that are held out.
    """
    chosen = built_in_calibration(task, tokenizer)
    self_test_inputs = chosen.inputs[:_NUM_SELF_TESTS]
    if calibrate is not None:
        chosen = file_calibration(Path(calibrate), columns, task, tokenizer)
    calibration, texts = _drift_inputs(chosen, labelled)
    return Probe(
        tokenizer=tokenizer,
        texts=texts,
        texts_record=_texts_record(chosen, texts, labelled),
        self_test_inputs=self_test_inputs,
        calibration=calibration,
        calibration_warning=chosen.warning,
    )


def _drift_inputs(chosen: CalibrationTexts, labelled: LabelledFile | None) -> tuple[CalibrationTexts, Sequence[Any]]:
    """Return the inputs to calibrate on, and those to measure drift on."""
    if labelled is None:
        return chosen.split()
    return chosen, [item for example in labelled.examples for item in example.inputs]


def _texts_record(chosen: CalibrationTexts, texts: Sequence[Any], labelled: LabelledFile | None) -> dict[str, Any]:
    """Return where the inputs that judge INT8 come from, as the manifest states it."""
    if labelled is not None:
        sha256 = sha256_file(labelled.path)
        same_file = {"calibrated_on_too": True} if sha256 == chosen.sha256 else {}
        return {"source": labelled.path.name, "sha256": sha256, "inputs": len(texts), **same_file}
    built_in = sum(item in set(texts) for item in chosen.built_in_inputs)
    return {
        "source": chosen.source,
        "sha256": chosen.sha256,
        "inputs": len(texts),
        **({"built_in_inputs": built_in} if built_in else {}),
        "held_out_from_calibration": len(texts) < len(chosen.all_inputs),
    }
