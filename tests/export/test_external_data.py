"""Graphs too large for one ONNX file, here by a limit that toy models exceed."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_export import variants
from bert_export.export import export
from bert_runtime import BundleError, load, verify
from bert_runtime.tasks import sole_rows


@pytest.fixture
def bundle(classifier_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(variants, "MAX_PROTOBUF_BYTES", 1000)
    export(classifier_checkpoint, tmp_path / "bundle")
    return tmp_path / "bundle"


def test_weights_lie_beside_the_graph_and_answers_are_the_same(bundle: Path, classifier_bundle: Path) -> None:
    names = {"bundle.json", "tokenizer.json", "model.fp32.onnx", "model.int8.onnx"}
    assert {path.name for path in bundle.iterdir()} == names | {"model.fp32.onnx.data", "model.int8.onnx.data"}
    assert all(check.passed for check in verify(bundle))
    texts = ["hello", "where is my card?"]
    for precision in ("fp32", "int8"):
        found, expected = (
            sole_rows(load(each, precision=precision).outputs(texts)) for each in (bundle, classifier_bundle)
        )
        assert np.array_equal(found, expected)


def test_bundle_may_be_moved(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Path(shutil.move(bundle, tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    assert load(moved)("hello").label == load(str(moved.relative_to(tmp_path)))("hello").label


def test_damaged_weights_are_found(bundle: Path) -> None:
    data = bundle / "model.fp32.onnx.data"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    with pytest.raises(BundleError, match=r"model\.fp32\.onnx\.data: expected sha256"):
        load(bundle, precision="fp32")
    data.unlink()
    with pytest.raises(BundleError, match=r"model\.fp32\.onnx\.data: the manifest names this file, and it is missing"):
        load(bundle, precision="fp32")
