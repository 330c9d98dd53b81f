"""Calibration of a bundle's probabilities on labelled rows, kept in the settings of its task."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from bert_runtime.bundle.atomic_files import atomic_write
from bert_runtime.bundle.manifest import MANIFEST_NAME, Manifest
from bert_runtime.cascade.manifest import is_cascade
from bert_runtime.cascade.task import MODELS
from bert_runtime.errors import BundleError, DataError
from bert_runtime.evaluation import build_examples, run_examples
from bert_runtime.loading import load
from bert_runtime.records import Record
from bert_runtime.score_calibration import METHODS, cross_validate, quality
from bert_runtime.tasks import Task, TextClassification, stack_single_window

__all__ = ["ScoreCalibration", "calibrate_scores"]

_MIN_ROWS = 30
"""Rows of different texts with which the calibration of three numbers or more is worth anything. A judgement."""

_Qualities = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class ScoreCalibration:
    """A calibration, and how well probabilities fit with and without it. Field names are JSON keys."""

    method: str
    """`temperature` or `vector`."""
    precision: str
    """The variant that the rows ran through."""
    examples: int
    logit_scales: tuple[float, ...]
    logit_biases: tuple[float, ...]
    before: _Qualities
    """Accuracy, expected calibration error, Brier score and negative log-likelihood without a calibration."""
    after: _Qualities
    """The same, of texts that were not fitted on: five folds."""


def calibrate_scores(
    bundle: Path,
    records: Sequence[Record],
    *,
    method: str = "temperature",
    precision: str = "auto",
    progress: Callable[[int], None] = lambda done: None,
) -> ScoreCalibration:
    """Fit a bundle's probabilities to labelled rows, and write the calibration into its manifest.

    An earlier calibration is replaced. Graphs are not touched, and results keep the raw logits. The manifest says under
    `score_calibration` what was measured; the metrics of its variants are those without a calibration.

    Args:
        bundle: the bundle's directory.
        records: labelled rows that the model was not trained on.
        method: `temperature` changes no decision; `vector` gives each label a scale and a bias.
        precision: the variant to run the rows through; `auto`: the one that `load` chooses.
        progress: called with the number of examples that were processed since the last call.

    Raises:
        DataError: there are too few different texts, or one does not fit the task.
        BundleError: the bundle does not classify into one of several labels, is a part of a cascade, or cannot be
            written to.
    """
    path = bundle / MANIFEST_NAME
    if path.is_symlink():  # as in a cache of the hub, where other revisions share the file
        raise BundleError(f"{path}: expected a file, found a link to {path.resolve()}; calibrate a copy of the bundle")
    folder = bundle.resolve()
    if folder.name in MODELS and is_cascade(folder.parent):
        raise BundleError(
            f"{bundle}: is a part of the cascade {folder.parent}, which records its hash; calibrate the bundle that "
            "the cascade was made from, and make a new one with bert-export cascade"
        )
    model = load(bundle, precision=precision)
    manifest, variant = Manifest.read(bundle), model.variant
    assert variant is not None, "a loaded bundle has a variant"
    task = _uncalibrated(manifest.task)
    examples = build_examples(task, model.tokenizer, records)
    texts = [example.inputs for example in examples]
    if (different := len(set(texts))) < _MIN_ROWS:
        raise DataError(
            f"{records[0].path}: expected at least {_MIN_ROWS} labelled rows of different texts to calibrate on, found "
            f"{different} in {len(records)} rows; label more"
        )
    logits = stack_single_window(run_examples(model, examples, progress))
    expected = np.array([example.target for example in examples], dtype=np.int64)
    found = METHODS[method](logits, expected)
    accuracy = float(np.mean(logits.argmax(axis=-1) == expected))
    calibration = ScoreCalibration(
        method=method,
        precision=variant.precision,
        examples=len(examples),
        logit_scales=found.scales,
        logit_biases=found.biases,
        before={"accuracy": accuracy, **quality(task.probabilities(logits), expected)},
        after=cross_validate(logits, expected, method, texts),
    )
    _write(bundle, manifest, task, calibration)
    return calibration


def _uncalibrated(task: Task) -> TextClassification:
    if not isinstance(task, TextClassification) or task.problem_type != "single_label":
        kind = f"{task.problem_type} " if isinstance(task, TextClassification) else ""
        raise BundleError(f"expected a single_label text-classification bundle, found one for {kind}{task.name}")
    return replace(task, logit_scales=(), logit_biases=())


def _write(bundle: Path, manifest: Manifest, task: TextClassification, found: ScoreCalibration) -> None:
    record = asdict(found)
    calibrated = replace(task, **{name: record.pop(name) for name in ("logit_scales", "logit_biases")})
    extra = {**manifest.extra, "score_calibration": record}
    path = bundle / MANIFEST_NAME
    try:
        with atomic_write(path) as stream:
            stream.write(replace(manifest, task=calibrated, extra=extra).to_json())
    except OSError as error:
        raise BundleError(f"{path}: cannot be written: {error}; calibrate a copy of the bundle") from None
