"""Choose the inputs of an export: those that calibrate INT8, those that judge it, and those of the self-tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_export.calibration_texts import CalibrationTexts, built_in_calibration, file_calibration
from bert_export.errors import ExportError
from bert_export.labelled_data import LabelledData
from bert_export.variants import Probe
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.tasks import Task
from bert_runtime.tokenization import TextTokenizer

__all__ = ["check_drift_inputs", "make_probe"]

_NUM_SELF_TESTS = 4
"""How many of the reference texts become self-test vectors."""


def make_probe(
    task: Task,
    tokenizer: TextTokenizer,
    labelled: LabelledData | None,
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


def check_drift_inputs(task: Task, probe: Probe) -> None:
    """Raise `ExportError`, before any work, if the inputs cannot show how a variant agrees with FP32."""
    agreement, _ = task.agreement_floor
    if agreement == "pearson" and len(set(probe.texts)) < 2:
        raise ExportError(
            f"{probe.texts_record['source']}: expected at least 2 different inputs to correlate outputs with "
            f"FP32's, found {len(set(probe.texts))}; give more"
        )


def _drift_inputs(chosen: CalibrationTexts, labelled: LabelledData | None) -> tuple[CalibrationTexts, Sequence[Any]]:
    """Return the inputs to calibrate on, and those to measure drift on."""
    if labelled is None:
        return chosen.split()
    return chosen, labelled.inputs


def _texts_record(chosen: CalibrationTexts, texts: Sequence[Any], labelled: LabelledData | None) -> dict[str, Any]:
    """Return where the inputs that judge INT8 come from, as the manifest states it."""
    if labelled is not None:
        sha256 = sha256_file(labelled.path)
        same_file = {"calibrated_on_too": True} if sha256 == chosen.sha256 else {}
        return {"source": labelled.name, "sha256": sha256, "inputs": len(texts), **same_file}
    built_in = sum(item in set(texts) for item in chosen.built_in_inputs)
    return {
        "source": chosen.source,
        "sha256": chosen.sha256,
        "inputs": len(texts),
        **({"built_in_inputs": built_in} if built_in else {}),
        "held_out_from_calibration": len(texts) < len(chosen.all_inputs),
    }
