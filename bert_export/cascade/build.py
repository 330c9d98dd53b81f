"""Build a cascade of two bundles."""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bert_export.cascade.latency import measure_latency
from bert_export.cascade.threshold import Threshold, choose_threshold
from bert_export.errors import ExportError, OutputExistsError
from bert_export.paired_bootstrap import paired_drop
from bert_runtime import Model, load
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.bundle.contents import replacement_problem
from bert_runtime.bundle.manifest import MANIFEST_NAME, sha256_file
from bert_runtime.bundle_calibration import calibrate_scores
from bert_runtime.cascade import Cascade, CascadeManifest, is_cascade
from bert_runtime.cascade.loading import check_tasks
from bert_runtime.cascade.manifest import Part
from bert_runtime.cascade.task import MODELS
from bert_runtime.errors import DataError
from bert_runtime.evaluation import build_examples, run_examples
from bert_runtime.machine import describe, installed_versions
from bert_runtime.plan import TUNING_NAME
from bert_runtime.records import Record
from bert_runtime.tasks import Example, Outputs, Task, TextClassification

__all__ = ["CascadeResult", "build_cascade"]

_MIN_ROWS = 30
"""Rows of each half of the labelled file with which a threshold is worth anything. A judgement."""

_MIN_LABEL_ROWS = 100
"""Rows of each label with which the small model gets a scale and a bias for each. Its confidence in two labels often
differs: on SST-2, it answered 51 % of the texts with vector scaling, and 47 % with temperature scaling, at equal loss
(MiniLM beside MPNet-base; means over 100 splits of 2,370 rows)."""

_TOOLS = ("bert-export", "onnxruntime", "numpy", "tokenizers")

_ALWAYS_SMALL, _ALWAYS_LARGE = 0.0, float("inf")
"""Thresholds with which one model answers everything."""


@dataclass(frozen=True, kw_only=True)
class CascadeResult:
    """The outcome of `build_cascade`, also where the gate refused the cascade."""

    manifest: CascadeManifest
    passed: bool
    """Whether the loss on the rows set aside is within the limit; only then a bundle was written."""
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

    Half of the rows calibrate the probabilities and choose the threshold; the other half judges the cascade against the
    large model alone. Equal texts are in the same half.

    Args:
        small: Bundle of the small model.
        large: Bundle of the large one, for the same labels.
        output: Folder to write; nothing is written where the gate refuses.
        records: Labelled rows that neither model was trained on.
        max_drop: Largest loss of the task metric, in percent of the large model's.
        force: Replace an existing bundle.
        seed: Seed of the halves and of the resamples.
        progress: Called with a line at the start of each stage.

    Raises:
        BundleError: A bundle cannot be read, or the two do not classify into the same labels.
        DataError: A row does not fit, or there are too few.
        ExportError: `output` exists already, or is one of the bundles.
    """
    _check_output(output, (small, large), force=force)
    chosen_on, judged_on = _halves(records, seed)
    with TemporaryDirectory(prefix="cascade-") as name:
        building = Path(name)
        progress("reading the bundles")
        calibration = _copy_calibrated(building, (small, large), chosen_on)
        found = _judge(building, calibration, chosen_on, judged_on, max_drop, seed, progress)
        if found.passed:
            with atomic_replace_dir(output) as folder:
                shutil.copytree(building, folder, dirs_exist_ok=True)
                (folder / MANIFEST_NAME).write_text(found.manifest.to_json(), encoding="utf-8")
                load(folder)  # what is written can be read
    return found


def _check_output(output: Path, bundles: Sequence[Path], *, force: bool) -> None:
    for bundle in bundles:
        if bundle.resolve().is_relative_to(output.resolve()):
            raise ExportError(f"{output}: holds the bundle {bundle}; choose another folder for the cascade")
    if force and is_cascade(output) and {path.name for path in output.iterdir()} <= {MANIFEST_NAME, *MODELS}:
        return
    if problem := replacement_problem(output, force=force):
        raise OutputExistsError(problem)


def _halves(records: Sequence[Record], seed: int) -> tuple[list[Record], list[Record]]:
    """Return two halves of the rows in random order, with equal texts in one of them."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(repr([record.fields.get(name) for name in ("text", "text_pair")]), []).append(record)
    shuffled = list(groups.values())
    random.Random(seed).shuffle(shuffled)
    middle = len(shuffled) // 2
    first, second = ([record for group in part for record in group] for part in (shuffled[:middle], shuffled[middle:]))
    if min(len(first), len(second)) < _MIN_ROWS:
        raise DataError(f"expected at least {2 * _MIN_ROWS} labelled rows of different texts, found {len(records)}")
    return first, second


def _copy_calibrated(folder: Path, bundles: Sequence[Path], records: Sequence[Record]) -> dict[str, Any]:
    """Copy the bundles into `folder`, calibrate the probabilities of one label, and return the calibrations."""
    models = [load(bundle) for bundle in bundles]
    check_tasks(*(model.task for model in models))
    calibration = {}
    for name, bundle, model in zip(MODELS, bundles, models, strict=True):
        # A measured plan is that of another manifest once this one is calibrated.
        shutil.copytree(bundle, folder / name, ignore=shutil.ignore_patterns(TUNING_NAME))
        if getattr(model.task, "problem_type", None) == "single_label":
            method = "vector" if name == MODELS[0] and _has_many_rows(model.task, records) else "temperature"
            calibration[name] = asdict(calibrate_scores(folder / name, records, method=method))
    return calibration


def _has_many_rows(task: Task, records: Sequence[Record]) -> bool:
    """Return whether every label has at least `_MIN_LABEL_ROWS` rows."""
    assert isinstance(task, TextClassification), "as was checked"
    counts = Counter(record.label() for record in records)
    return min(counts[label] for label in task.labels) >= _MIN_LABEL_ROWS


def _judge(
    folder: Path,
    calibration: dict[str, Any],
    chosen_on: Sequence[Record],
    judged_on: Sequence[Record],
    max_drop: float,
    seed: int,
    progress: Callable[[str], None],
) -> CascadeResult:
    """Choose the threshold on some rows, and measure the cascade on the others."""
    models = [load(folder / name) for name in MODELS]
    parts = tuple(Part(folder=name, sha256=sha256_file(folder / name / MANIFEST_NAME)) for name in MODELS)
    draft = CascadeManifest(
        threshold=0.0, parts=parts, metric=models[1].task.metric, max_drop_percent=max_drop, chosen_on={},
        judged_on={}, calibration=calibration, machine=describe(), versions=installed_versions(_TOOLS),
    )  # fmt: skip
    progress(f"choosing the threshold on {len(chosen_on)} rows")
    chosen, is_allowed = _choose(models, draft, chosen_on, max_drop)
    cascade = _with_threshold(models, draft, chosen.value)
    progress(f"judging the cascade on the {len(judged_on)} rows that were set aside")
    examples = build_examples(cascade.task, cascade.tokenizer, judged_on)
    outputs = run_examples(cascade, examples)
    reference, alone = (
        run_examples(_with_threshold(models, draft, value), examples) for value in (_ALWAYS_LARGE, _ALWAYS_SMALL)
    )
    drop = paired_drop(cascade.task, outputs, cascade.task, reference, examples, seed)
    share = 1 - float(np.mean([output.arrays[1][0] for output in outputs]))
    progress("measuring latencies")
    manifest = replace(
        draft,
        threshold=chosen.value,
        chosen_on={"rows": len(chosen_on), **chosen._asdict()},
        judged_on={**asdict(drop), "small": cascade.task.score(alone, examples)[drop.metric], "small_share": share},
        latency_ms=measure_latency(cascade, [example.inputs[0] for example in examples]),
    )
    passed = is_allowed and drop.drop_percent <= max_drop + 1e-9
    reason = (
        f"on {drop.rows} rows that were set aside, the cascade loses {drop.drop_percent:.2f} % of the large model's "
        f"{drop.metric} (95 % interval {drop.drop_interval.low:.2f} to {drop.drop_interval.high:.2f} %), where "
        f"{max_drop:g} % is allowed; the small model answers {share:.0%}"
    )
    if not is_allowed:
        reason = f"no threshold is within the limit on the {len(chosen_on)} rows of the choice; {reason}"
    return CascadeResult(manifest=manifest, passed=passed, reason=reason)


def _choose(
    models: Sequence[Model], draft: CascadeManifest, records: Sequence[Record], max_drop: float
) -> tuple[Threshold, bool]:
    """Return the threshold, and whether it is within the limit on these rows."""
    outputs: list[list[Outputs]] = []
    examples: list[Example] = []
    for value in (_ALWAYS_SMALL, _ALWAYS_LARGE):
        cascade = _with_threshold(models, draft, value)
        examples = build_examples(cascade.task, cascade.tokenizer, records)
        outputs.append(run_examples(cascade, examples))
    return choose_threshold(cascade.cascade_task, outputs[0], outputs[1], examples, max_drop)


def _with_threshold(models: Sequence[Model], draft: CascadeManifest, value: float) -> Cascade:
    return Cascade(models[0], models[1], replace(draft, threshold=value))
