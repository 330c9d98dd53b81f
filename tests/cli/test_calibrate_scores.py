"""`bert-export calibrate-scores`: what it prints, what it leaves in the bundle, and what it refuses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from bert_runtime import load
from bert_runtime.tasks import Classification
from bert_runtime.verification import verify

from ..conftest import CopyBundle

Run = Callable[..., Result]


@pytest.fixture
def bundle(copy_bundle: CopyBundle, classifier_bundle: Path) -> Path:
    return copy_bundle(classifier_bundle)


@pytest.fixture
def rows(tmp_path: Path, bundle: Path) -> Path:
    """Forty labelled rows, of which the toy model is right about three in four."""
    model = load(bundle, precision="fp32")
    lines = []
    for number in range(40):
        text = " ".join(["where", "is", "my", "card", "train", "paris"][number % 6 :] or ["hello"]) + " please" * (
            number // 6
        )
        labels = [label for label, _ in model(text).top()]  # type: ignore[union-attr]
        lines.append(json.dumps({"text": text, "label": labels[0 if number % 4 else 1]}))
    path = tmp_path / "dev.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_calibrates_and_stays_verified(run: Run, bundle: Path, rows: Path) -> None:
    before = load(bundle, precision="fp32")("where is my card")
    report = json.loads(run("calibrate-scores", bundle, rows, "--precision", "fp32", "--json").stdout)
    assert report["examples"] == 40
    assert report["before"]["accuracy"] == report["after"]["accuracy"] == 0.75
    assert report["after"]["negative_log_likelihood"] < report["before"]["negative_log_likelihood"]
    after = load(bundle, precision="fp32")("where is my card")
    assert isinstance(before, Classification)
    assert isinstance(after, Classification)
    assert after.label == before.label
    assert after.score != pytest.approx(before.score, abs=1e-3)
    np.testing.assert_array_equal(after.logits, before.logits)
    assert all(check.passed or check.skipped for check in verify(bundle))
    recorded = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))["score_calibration"]
    assert recorded == {key: report[key] for key in ("method", "precision", "examples", "before", "after")}


def test_evaluate_reports_the_calibrated_scores(run: Run, bundle: Path, rows: Path) -> None:
    report = json.loads(run("calibrate-scores", bundle, rows, "--precision", "fp32", "--json").stdout)
    found = json.loads(run("evaluate", bundle, rows, "--precision", "fp32", "--json").stdout)
    assert found["negative_log_likelihood"] < report["before"]["negative_log_likelihood"]
    assert set(found) >= {"expected_calibration_error", "brier_score", "accuracy"}


def test_a_second_calibration_starts_from_the_raw_scores(run: Run, bundle: Path, rows: Path) -> None:
    first, second = (json.loads(run("calibrate-scores", bundle, rows, "--json").stdout) for _ in range(2))
    assert first == second


def test_vector_scaling_gives_each_label_its_own(run: Run, bundle: Path, rows: Path) -> None:
    report = json.loads(run("calibrate-scores", bundle, rows, "--method", "vector", "--json").stdout)
    labels = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))["task"]["labels"]
    assert len(report["logit_scales"]) == len(report["logit_biases"]) == len(labels)
    assert "accuracy" in run("calibrate-scores", bundle, rows, "--method", "vector").stdout


def test_too_few_rows_are_refused(run: Run, bundle: Path, rows: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    lines = rows.read_text(encoding="utf-8").splitlines()[:29]
    few.write_text("\n".join(lines + lines[:5]), encoding="utf-8")
    before = (bundle / "bundle.json").read_bytes()
    result = run("calibrate-scores", bundle, few)
    assert result.exit_code == 1
    message = "expected at least 30 labelled rows of different texts to calibrate on, found 29 in 34 rows; label more"
    assert message in " ".join(result.stderr.split())
    assert (bundle / "bundle.json").read_bytes() == before


def test_a_linked_manifest_is_not_written(run: Run, bundle: Path, rows: Path, tmp_path: Path) -> None:
    """In the hub's cache, other revisions may share it."""
    manifest = bundle / "bundle.json"
    blob = Path(shutil.move(manifest, tmp_path / "blob"))
    manifest.symlink_to(blob)
    before = blob.read_bytes()
    result = run("calibrate-scores", bundle, rows)
    assert (result.exit_code, blob.read_bytes() == before, manifest.is_symlink()) == (1, True, True)
    assert "bundle.json: expected a file, found a link to" in result.stderr


def test_an_unknown_precision_is_wrong_usage(run: Run, bundle: Path, rows: Path) -> None:
    result = run("calibrate-scores", bundle, rows, "--precision", "fp4")
    assert result.exit_code == 2
    assert "'fp4' is not one of 'auto', 'fp32'" in result.stderr


def test_other_tasks_are_refused(run: Run, embedding_bundle: Path, rows: Path) -> None:
    result = run("calibrate-scores", embedding_bundle, rows)
    assert result.exit_code == 1
    assert "expected a single_label text-classification bundle, found one for sentence-embedding" in result.stderr


@pytest.mark.parametrize(
    "setting", [{"logit_scales": [1, 2, 3, 4, 5, 6]}, {"logit_biases": [1]}, {"logit_scales": ["a"]}]
)
def test_a_malformed_calibration_is_refused_at_load(
    copy_bundle: CopyBundle, classifier_bundle: Path, run: Run, setting: dict[str, object]
) -> None:
    damaged = copy_bundle(classifier_bundle, lambda manifest: manifest["task"].update(setting))
    result = run("predict", damaged, "hello")
    assert result.exit_code == 1
    assert "logit" in result.stderr
