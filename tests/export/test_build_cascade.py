"""What `build_cascade` says of its outcome."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bert_export.cascade import build_cascade
from bert_export.cascade.cross_validation import JudgedRows
from bert_export.errors import ExportError
from bert_runtime import load
from bert_runtime.bundle_calibration import calibrate_scores
from bert_runtime.errors import BertError, DataError
from bert_runtime.records import Record

from ..conftest import LABELS


def rows_of(bundle: Path, folder: Path) -> list[Record]:
    """Return labelled rows whose labels are the bundle's own."""
    texts = [f"card number {number}" for number in range(80)]
    return [
        Record({"text": text, "label": cast(Any, result).label}, folder / "rows.jsonl", line)
        for line, (text, result) in enumerate(zip(texts, load(bundle)(texts), strict=True), start=1)
    ]


@pytest.mark.parametrize("method", ["vector", "temperature"])
def test_large_model_keeps_the_kind_of_its_calibration(method: str, classifier_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(classifier_bundle, large := tmp_path / "large")
    rows = rows_of(large, tmp_path)
    calibrate_scores(large, rows, method=method)
    found = build_cascade(classifier_bundle, large, tmp_path / "both", rows, max_drop=100)
    assert {name: fitted["method"] for name, fitted in found.manifest.calibration.items()} == {
        "small": "temperature",
        "large": method,
    }
    assert (tmp_path / "both").stat().st_mode == large.stat().st_mode  # not private, as a temporary folder is


@pytest.mark.parametrize(("cascade_ms", "is_warned"), [(0.9, False), (1.2, True)])
def test_a_cascade_that_saves_no_time_is_pointed_out(
    cascade_ms: float, is_warned: bool, classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    means = {"small": 0.5, "large": 1.0, "cascade": cascade_ms}
    times = {name: dict.fromkeys(("mean", "p50", "p99", "max"), mean) for name, mean in means.items()}
    monkeypatch.setattr("bert_export.cascade.build.measure_latency", lambda *_: times)
    rows = rows_of(classifier_bundle, tmp_path)
    said: list[str] = []
    found = build_cascade(
        classifier_bundle, classifier_bundle, tmp_path / "both", rows, max_drop=2, progress=said.append
    )
    assert found.passed, found.reason
    assert any(line.startswith("warning: the cascade saves no time") for line in said) == is_warned


def test_a_large_model_without_a_right_answer_is_refused(classifier_bundle: Path, tmp_path: Path) -> None:
    """No percentage of nothing can be lost."""
    other = dict(zip(LABELS, [*LABELS[1:], LABELS[0]], strict=True))
    rows = [
        replace(row, fields={**row.fields, "label": other[row.label()]}) for row in rows_of(classifier_bundle, tmp_path)
    ]
    with pytest.raises(ExportError, match=r"a large model whose accuracy is above 0, found 0\.0000"):
        build_cascade(classifier_bundle, classifier_bundle, tmp_path / "both", rows, max_drop=2)
    assert not (tmp_path / "both").exists()


def test_a_threshold_that_most_folds_did_not_find_is_refused(
    classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = JudgedRows.judge
    monkeypatch.setattr(JudgedRows, "judge", lambda *given: judge(*given) | {"refused_folds": 6})
    rows = rows_of(classifier_bundle, tmp_path)
    found = build_cascade(classifier_bundle, classifier_bundle, tmp_path / "both", rows, max_drop=2)
    assert not found.passed
    assert found.reason.startswith("in 6 of 10 folds no threshold is within the limit; on 80 rows")
    assert not (tmp_path / "both").exists()


def test_too_few_rows_to_tell_the_limit_apart_are_refused(classifier_bundle: Path, tmp_path: Path) -> None:
    rows = rows_of(classifier_bundle, tmp_path)
    with pytest.raises(DataError, match=r"at least 100 labelled rows for a limit of 1 %, found 80, of which"):
        build_cascade(classifier_bundle, classifier_bundle, tmp_path / "both", rows, max_drop=1)
    assert not (tmp_path / "both").exists()


def test_a_folder_that_appears_meanwhile_is_not_replaced(classifier_bundle: Path, tmp_path: Path) -> None:
    thesis = tmp_path / "both" / "thesis"

    def write_meanwhile(stage: str) -> None:
        thesis.parent.mkdir(exist_ok=True)
        thesis.write_text("of somebody else")

    rows = rows_of(classifier_bundle, tmp_path)
    with pytest.raises(BertError, match=r"both: exists and is not a bundle; choose another path"):
        build_cascade(classifier_bundle, classifier_bundle, thesis.parent, rows, max_drop=2, progress=write_meanwhile)
    assert thesis.read_text() == "of somebody else"
