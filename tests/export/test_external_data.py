"""Weights as external data: where they are, and that they load from there."""

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


def outputs(bundle: Path, precision: str) -> np.ndarray:
    return stack_single_window(load(bundle, precision=precision).outputs(["hello", "where is my card?"]))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_graph_file_holds_no_large_weight(bundle: Path, precision: str) -> None:
    graph = onnx.load(bundle / f"model.{precision}.onnx", load_external_data=False).graph
    external = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    assert len(external) > 10
    assert {entry.value for tensor in external for entry in tensor.external_data if entry.key == "location"} == {
        f"model.{precision}.onnx.data"
    }
    assert all(len(tensor.raw_data) < 1024 for tensor in graph.initializer)


def test_moved_bundle_loads(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Path(shutil.move(bundle, tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    assert load(moved)("hello").label == load(str(moved.relative_to(tmp_path)))("hello").label


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_files_that_are_links_into_other_folders_load(bundle: Path, tmp_path: Path, precision: str) -> None:
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for number, file in enumerate(bundle.iterdir()):
        store = tmp_path / "blobs" / str(number)
        store.mkdir(parents=True)
        (linked / file.name).symlink_to(shutil.copy(file, store / "blob"))
    assert np.array_equal(outputs(linked, precision), outputs(bundle, precision))


def test_broken_link_of_another_variant_is_ignored(bundle: Path) -> None:
    expected = outputs(bundle, "fp32")
    (bundle / "model.int8.onnx.data").unlink()
    (bundle / "model.int8.onnx.data").symlink_to("nowhere")
    assert np.array_equal(outputs(bundle, "fp32"), expected)
    with pytest.raises(BundleError, match=r"model\.int8\.onnx\.data.*missing"):
        load(bundle, precision="int8")


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_graph_file_with_all_weights_inside_loads(bundle: Path, precision: str, tmp_path: Path) -> None:
    """Earlier exports wrote such files."""
    from bert_runtime.cpu.session import Session

    path = bundle / f"model.{precision}.onnx"
    (tmp_path / "one").mkdir()
    onnx.save(onnx.load(path), tmp_path / "one" / path.name)
    model = load(bundle, precision=precision)
    expected = outputs(bundle, precision)
    model.session = Session(tmp_path / "one" / path.name, "logits", 2, int8=precision == "int8")
    model.parallel_sessions = None
    assert np.array_equal(stack_single_window(model.outputs(["hello", "where is my card?"])), expected)


def test_loaded_model_outlives_its_files(classifier_checkpoint: Path, bundle: Path) -> None:
    """Mapped weights stay when the bundle is exported again or removed."""
    model = load(bundle, precision="fp32", inter_threads=1)
    expected = stack_single_window(model.outputs(["hello"]))
    export(classifier_checkpoint, bundle, precisions=["fp32"], force=True)
    assert np.array_equal(stack_single_window(model.outputs(["hello"])), expected)
    shutil.rmtree(bundle)
    assert np.array_equal(stack_single_window(model.outputs(["hello"])), expected)


def test_damaged_or_missing_weights_are_an_error(bundle: Path) -> None:
    data = bundle / "model.fp32.onnx.data"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    with pytest.raises(BundleError, match=r"model\.fp32\.onnx\.data: expected sha256"):
        load(bundle, precision="fp32")
    data.unlink()
    with pytest.raises(BundleError, match=r"model\.fp32\.onnx\.data: the manifest names this file, and it is missing"):
        load(bundle, precision="fp32")
