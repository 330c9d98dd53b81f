"""Finding and checking the checkpoint that compared engines run."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bert_bench import BenchError
from bert_bench.checkpoints import check_checkpoint, find_checkpoint
from bert_bench.engine_selection import uncompressed_sha256
from bert_models import CheckpointError, open_checkpoint
from bert_runtime import Manifest
from bert_runtime.errors import MissingExtraError


@pytest.fixture
def manifest(classifier_bundle: Path) -> Manifest:
    return Manifest.read(classifier_bundle)


def test_bundle_source_is_found_with_its_expected_hash(manifest: Manifest, classifier_checkpoint: Path) -> None:
    sha256 = open_checkpoint(classifier_checkpoint).sha256()
    assert find_checkpoint(manifest, None) == (classifier_checkpoint, sha256)
    check_checkpoint(classifier_checkpoint, sha256)


def test_artifact_key_changes_with_the_configuration(classifier_checkpoint: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(classifier_checkpoint, tmp_path / "copy"))
    before = check_checkpoint(copy, None)
    assert before.key == check_checkpoint(classifier_checkpoint, None).key
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "hidden_dropout_prob": 0.3}))
    after = check_checkpoint(copy, None)
    assert (after.sha256, after.key != before.key) == (before.sha256, True)


def test_given_checkpoint_takes_precedence_and_may_have_any_hash(manifest: Manifest, tmp_path: Path) -> None:
    assert find_checkpoint(manifest, tmp_path) == (tmp_path, None)


def test_bundle_without_source_asks_for_a_checkpoint(manifest: Manifest) -> None:
    with pytest.raises(BenchError, match=r"does not name the checkpoint.*--checkpoint"):
        find_checkpoint(replace(manifest, source={}), None)


def test_missing_source_is_named(manifest: Manifest, tmp_path: Path) -> None:
    gone = {**manifest.source, "path": str(tmp_path / "gone")}
    with pytest.raises(BenchError, match=r"is no longer at .*gone;"):
        find_checkpoint(replace(manifest, source=gone), None)


def test_changed_weights_are_an_error(classifier_checkpoint: Path) -> None:
    with pytest.raises(BenchError, match=r"has changed since the bundle was made: expected sha256 000000000000…"):
        check_checkpoint(classifier_checkpoint, "0" * 64)


def test_a_compressed_bundle_may_be_compared_with_what_it_was_compressed_from(
    manifest: Manifest, classifier_checkpoint: Path
) -> None:
    assert uncompressed_sha256(manifest) is None
    sha256 = open_checkpoint(classifier_checkpoint).sha256()
    record = {"uncompressed": {"path": "checkpoint", "sha256": sha256}, "vocabulary": None}
    uncompressed = uncompressed_sha256(replace(manifest, extra={"compression": record}))
    assert check_checkpoint(classifier_checkpoint, "0" * 64, uncompressed).sha256 == sha256
    cut = {**record, "vocabulary": {"before": 100, "after": 50}}
    assert uncompressed_sha256(replace(manifest, extra={"compression": cut})) is None


def test_folder_that_is_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        check_checkpoint(tmp_path, None)


def test_missing_pytorch_names_the_extra(classifier_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"'torch'.*pip install .*\[export\]"):
        check_checkpoint(classifier_checkpoint, None)
