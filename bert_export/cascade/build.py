"""Build a cascade of two bundles."""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_export.cascade.cross_validation import NUM_FOLDS, JudgedRows, split_folds
from bert_export.cascade.latency import measure_latency
from bert_export.errors import ExportError, OutputExistsError
from bert_export.paired_bootstrap import is_within
from bert_runtime import load
from bert_runtime.bundle.atomic_folders import atomic_replace_dir, check_replaceable
from bert_runtime.bundle.contents import replacement_problem
from bert_runtime.bundle.manifest import MANIFEST_NAME, Manifest, sha256_file
from bert_runtime.bundle_calibration import calibrate_scores
from bert_runtime.cascade import Cascade, CascadeManifest, is_cascade
from bert_runtime.cascade.loading import check_tasks
from bert_runtime.cascade.manifest import Part
from bert_runtime.cascade.task import MODELS
from bert_runtime.errors import DataError
from bert_runtime.machine import describe, installed_versions
from bert_runtime.plan import TUNING_NAME
from bert_runtime.records import Record
from bert_runtime.tasks import Task, TextClassification

__all__ = ["CascadeResult", "build_cascade"]

_MIN_LABEL_ROWS = 100
"""Rows of each label with which the small model gets a scale and a bias for each. Its confidence in two labels often
differs: on SST-2, it answered 51 % of the texts with vector scaling, and 47 % with temperature scaling, at equal loss
(MiniLM beside MPNet-base; means over 100 splits of 2,370 rows)."""

_TOOLS = ("bert-export", "onnxruntime", "numpy", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class CascadeResult:
    """The outcome of `build_cascade`, also where the gate refused the cascade."""

    manifest: CascadeManifest
    passed: bool
    """Whether the loss in the folds is within the limit; only then a bundle was written."""
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {"passed": self.passed, "reason": self.reason, **self.manifest.to_dict()["cascade"]}


def build_cascade(
    small: Path,
    large: Path,
    output: Path,
    records: Sequence[Record],
    *,
    max_drop: float,
    force: bool = False,
    seed: int = 0,
    progress: Callable[[str], None] = lambda stage: None,
) -> CascadeResult:
    """Build a cascade in which a small model answers what it is sure of, and a large one the rest.

    All rows calibrate the probabilities and choose the threshold. The cascade is judged against the large model alone
    by cross-validation: each row by a calibration and a threshold that were chosen on the other folds. Equal texts are
    in the same fold.

    Args:
        small: bundle of the small model.
        large: bundle of the large one, for the same labels.
        output: folder to write; nothing is written where the gate refuses.
        records: labelled rows that neither model was trained on.
        max_drop: largest loss of the task metric, in percent of the large model's.
        force: replace an existing bundle.
        seed: seed of the folds and of the resamples.
        progress: called with a line at the start of each stage.

    Raises:
        BundleError: a bundle cannot be read, or the two do not classify into the same labels.
        DataError: a row does not fit, or there are too few.
        ExportError: `output` exists already, is or holds one of the bundles, or is in one; or the large model's metric
            is not above 0.
    """
    _check_output(output, (small, large), force=force)
    folds = split_folds(records, seed)
    with TemporaryDirectory(prefix="cascade-") as name:
        building = Path(name)
        progress("reading the bundles")
        calibration = _copy_calibrated(building, (small, large), records)
        found = _judge(building, calibration, records, folds, max_drop, seed, progress)
        if found.passed:
            times = {name: found.manifest.latency_ms[name]["mean"] for name in ("large", "cascade")}
            if times["cascade"] >= times["large"]:
                progress(
                    f"warning: the cascade saves no time here: a text takes {times['cascade']:.3g} ms, and "
                    f"{times['large']:.3g} on the large model alone"
                )
            with atomic_replace_dir(output, partial(_replacement_problem, output, force=force)) as folder:
                for name in MODELS:
                    shutil.copytree(building / name, folder / name)
                (folder / MANIFEST_NAME).write_text(found.manifest.to_json(), encoding="utf-8")
                load(folder)  # what is written can be read
    return found


def _check_output(output: Path, bundles: Sequence[Path], *, force: bool) -> None:
    for bundle in bundles:
        if bundle.resolve().is_relative_to(output.resolve()):
            raise ExportError(f"{output}: holds the bundle {bundle}; choose another folder for the cascade")
        if output.resolve().is_relative_to(bundle.resolve()):
            raise ExportError(f"{output}: is in the bundle {bundle}; choose another folder for the cascade")
    check_replaceable(output)
    if problem := _replacement_problem(output, force=force):
        raise OutputExistsError(problem)


def _replacement_problem(output: Path, *, force: bool) -> str | None:
    """Return why a cascade may not be written to `output`, or `None` if it may."""
    replaced = [output]
    if force and is_cascade(output) and {path.name for path in output.iterdir()} <= {MANIFEST_NAME, *MODELS}:
        replaced = [output / name for name in MODELS]
    return next(filter(None, (replacement_problem(folder, force=force) for folder in replaced)), None)


def _copy_calibrated(folder: Path, bundles: Sequence[Path], records: Sequence[Record]) -> dict[str, Any]:
    """Copy the bundles into `folder`, calibrate the probabilities of one label, and return the calibrations."""
    for bundle in bundles:
        Manifest.read(bundle)  # a cascade in a cascade is an error
    models = [load(bundle) for bundle in bundles]
    check_tasks(*(model.task for model in models))
    calibration = {}
    for name, bundle, model in zip(MODELS, bundles, models, strict=True):
        # A measured plan is that of another manifest once this one is calibrated.
        shutil.copytree(bundle, folder / name, ignore=shutil.ignore_patterns(TUNING_NAME))
        if getattr(model.task, "problem_type", None) == "single_label":
            is_vector = _has_vector_scaling(model.task) or (name == MODELS[0] and _has_many_rows(model.task, records))
            method = "vector" if is_vector else "temperature"
            calibration[name] = asdict(calibrate_scores(folder / name, records, method=method))
    return calibration


def _has_vector_scaling(task: Task) -> bool:
    """Return whether a bundle is calibrated by label: a temperature instead would change the labels it gives."""
    return isinstance(task, TextClassification) and any(task.logit_biases)


def _has_many_rows(task: Task, records: Sequence[Record]) -> bool:
    """Return whether every label has at least `_MIN_LABEL_ROWS` rows."""
    assert isinstance(task, TextClassification), "as was checked"
    counts = Counter(record.label() for record in records)
    return min(counts[label] for label in task.labels) >= _MIN_LABEL_ROWS


def _judge(
    folder: Path,
    calibration: dict[str, Any],
    records: Sequence[Record],
    folds: NDArray[np.int64],
    max_drop: float,
    seed: int,
    progress: Callable[[str], None],
) -> CascadeResult:
    """Choose the threshold on all rows, and judge how it was chosen by cross-validation."""
    small, large = models = [load(folder / name) for name in MODELS]
    parts = tuple(Part(folder=name, sha256=sha256_file(folder / name / MANIFEST_NAME)) for name in MODELS)
    progress(f"running {len(records)} rows through both models")
    methods = [calibration.get(name, {}).get("method", "") for name in MODELS]
    rows = JudgedRows.run(models, methods, records, folds)
    progress("choosing the threshold")
    chosen, is_allowed = rows.choose(max_drop)
    progress(f"judging the choice by {NUM_FOLDS} folds")
    judged = rows.judge(max_drop, seed)
    if not judged["reference"] > 0:  # a loss in percent would mean nothing
        raise ExportError(
            f"{records[0].path}: expected a large model whose {judged['metric']} is above 0, found "
            f"{judged['reference']:.4f} on {len(records)} rows; give rows of its task, or fine-tune it first"
        )
    if 0 < max_drop < (row_percent := 100 / (judged["rows"] * judged["reference"])):
        raise DataError(
            f"{records[0].path}: expected at least {ceil(len(records) * row_percent / max_drop)} labelled rows for a "
            f"limit of {max_drop:g} %, found {len(records)}, of which {judged['rows']} judge and one is "
            f"{row_percent:.2g} % of the large model's {judged['metric']}; label more, or allow a larger loss"
        )
    manifest = CascadeManifest(
        threshold=chosen.value, parts=parts, metric=large.task.metric, max_drop_percent=max_drop,
        chosen_on={"rows": len(records), **chosen._asdict()}, judged_on=judged, calibration=calibration,
        machine=describe(), versions=installed_versions(_TOOLS),
    )  # fmt: skip
    progress("measuring latencies")
    texts = [example.inputs[0] for example in rows.examples]
    manifest = replace(manifest, latency_ms=measure_latency(Cascade(small, large, manifest), texts))
    num_refused = judged["refused_folds"]  # folds that judge no threshold
    passed = is_allowed and 2 * num_refused <= NUM_FOLDS and is_within(judged["drop_percent"], max_drop)
    reason = _describe(judged, max_drop, {name: times["mean"] for name, times in manifest.latency_ms.items()})
    if not is_allowed:
        reason = f"no threshold is within the limit on all {len(records)} rows; {reason}"
    elif num_refused:
        reason = f"in {num_refused} of {NUM_FOLDS} folds no threshold is within the limit; {reason}"
    return CascadeResult(manifest=manifest, passed=passed, reason=reason)


def _describe(judged: Mapping[str, Any], max_drop: float, mean_ms: Mapping[str, float]) -> str:
    """Return the verdict in words."""
    interval = judged["drop_interval"]
    return (
        f"on {judged['rows']} rows, each judged by a threshold that was chosen without it, the cascade loses "
        f"{judged['drop_percent']:.2f} % of the large model's {judged['metric']} (95 % interval {interval['low']:.2f} "
        f"to {interval['high']:.2f} %), where {max_drop:g} % is allowed; the small model answers "
        f"{judged['small_share']:.0%}, and a text takes {mean_ms['cascade']:.3g} ms instead of {mean_ms['large']:.3g}"
    )
