"""Weights beside the graph."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from bert_export import export
from bert_runtime import BundleError, load
from bert_runtime.tasks import stack_single_window


@pytest.fixture
def bundle(classifier_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(classifier_bundle, tmp_path / "bundle"))


def answers(bundle: Path, precision: str) -> np.ndarray:
    return stack_single_window(load(bundle, precision=precision).outputs(["hello", "where is my card?"]))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_graph_holds_no_large_weight(bundle: Path, precision: str) -> None:
    graph = onnx.load(bundle / f"model.{precision}.onnx", load_external_data=False).graph
    beside = [each for each in graph.initializer if each.data_location == onnx.TensorProto.EXTERNAL]
    assert len(beside) > 10
    assert {entry.value for each in beside for entry in each.external_data if entry.key == "location"} == {
        f"model.{precision}.onnx.data"
    }
    assert all(len(each.raw_data) < 1024 for each in graph.initializer)


def test_bundle_may_be_moved(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Path(shutil.move(bundle, tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    assert load(moved)("hello").label == load(str(moved.relative_to(tmp_path)))("hello").label


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_files_may_be_links_into_other_folders(bundle: Path, tmp_path: Path, precision: str) -> None:
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for number, file in enumerate(bundle.iterdir()):
        store = tmp_path / "blobs" / str(number)
        store.mkdir(parents=True)
        (linked / file.name).symlink_to(shutil.copy(file, store / "blob"))
    assert np.array_equal(answers(linked, precision), answers(bundle, precision))


def test_a_link_of_another_variant_may_lead_nowhere(bundle: Path) -> None:
    expected = answers(bundle, "fp32")
    (bundle / "model.int8.onnx.data").unlink()
    (bundle / "model.int8.onnx.data").symlink_to("nowhere")
    assert np.array_equal(answers(bundle, "fp32"), expected)
    with pytest.raises(BundleError, match=r"model\.int8\.onnx\.data.*missing"):
        load(bundle, precision="int8")


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_one_file_with_everything_is_read_too(bundle: Path, precision: str, tmp_path: Path) -> None:
    """As earlier exports have it."""
    from bert_runtime.cpu.session import Session

    path = bundle / f"model.{precision}.onnx"
    (tmp_path / "one").mkdir()
    onnx.save(onnx.load(path), tmp_path / "one" / path.name)
    model = load(bundle, precision=precision)
    beside = answers(bundle, precision)
    model.session = Session(tmp_path / "one" / path.name, "logits", 2, int8=precision == "int8")
    model.parallel_sessions = None
    assert np.array_equal(stack_single_window(model.outputs(["hello", "where is my card?"])), beside)


def test_a_served_bundle_outlives_its_files(classifier_checkpoint: Path, bundle: Path) -> None:
    """What is mapped stays, where a bundle is exported again or removed."""
    model = load(bundle, precision="fp32", inter_threads=1)
    expected = stack_single_window(model.outputs(["hello"]))
    export(classifier_checkpoint, bundle, precisions=["fp32"], force=True)
    assert np.array_equal(stack_single_window(model.outputs(["hello"])), expected)
    shutil.rmtree(bundle)
    assert np.array_equal(stack_single_window(model.outputs(["hello"])), expected)


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
