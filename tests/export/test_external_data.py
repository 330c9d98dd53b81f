"""Weights as external data: where they are, and that they load from there."""

import json
import random
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from bert_export import export
from bert_runtime import BundleError, Model, load, tune, verify
from bert_runtime.bundle.digest import manifest_digest
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.bundle.onnx_file import read_onnx_file
from bert_runtime.tasks import TextInput, stack_single_window
from bert_runtime.tokenization import Batch, pad


@pytest.fixture
def bundle(classifier_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(classifier_bundle, tmp_path / "bundle"))


def batch_of(texts: list[str], model: Model) -> Batch:
    return pad([windows[0] for windows in model.tokenizer.encode([TextInput(text) for text in texts])], 0)


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


def _link(bundle: Path, linked: Path, store: Path) -> Path:
    """Copy the files of a bundle to `store`, and make a folder of links to them."""
    linked.mkdir(parents=True)
    store.mkdir(parents=True)
    for file in bundle.iterdir():
        (linked / file.name).symlink_to(shutil.copy(file, store / sha256_file(file)))
    return linked


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("subfolder", ["", "onnx"])
def test_links_of_a_hugging_face_cache_load(bundle: Path, tmp_path: Path, precision: str, subfolder: str) -> None:
    repository = tmp_path / "models--org--name"
    linked = _link(bundle, repository / "snapshots" / "0f1e2d" / subfolder, repository / "blobs")
    assert np.array_equal(outputs(linked, precision), outputs(bundle, precision))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_links_out_of_the_bundle_load_only_where_they_are_allowed(bundle: Path, tmp_path: Path, precision: str) -> None:
    linked = _link(bundle, tmp_path / "linked", tmp_path / "blobs")
    with pytest.raises(BundleError, match=r"tokenizer\.json: is a link out of the bundle, to .*allow_links=True"):
        load(linked)
    model = load(linked, precision=precision, allow_links=True)
    texts = ["hello", "where is my card?"]
    assert np.array_equal(stack_single_window(model.outputs(texts)), outputs(bundle, precision))
    assert load(linked, precision=precision, verify=False, allow_links=True).run(batch_of(texts, model)).shape == (2, 3)


def test_links_of_another_repository_in_the_cache_are_refused(bundle: Path, tmp_path: Path) -> None:
    linked = _link(bundle, tmp_path / "models--a" / "snapshots" / "0f1e2d", tmp_path / "models--b" / "blobs")
    with pytest.raises(BundleError, match="is a link out of the bundle"):
        load(linked)


def test_links_within_the_bundle_load(bundle: Path) -> None:
    """As in a volume of Kubernetes."""
    expected = outputs(bundle, "fp32")
    (bundle / "..data").mkdir()
    for name in ("tokenizer.json", "model.fp32.onnx", "model.fp32.onnx.data"):
        shutil.move(bundle / name, bundle / "..data" / name)
        (bundle / name).symlink_to(Path("..data", name))
    assert np.array_equal(outputs(bundle, "fp32"), expected)


def _edit_manifest(bundle: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = bundle / "bundle.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    edit(manifest)
    manifest["manifest_sha256"] = manifest_digest(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


def _list_graph(bundle: Path) -> None:
    """Store the hash of a changed FP32 graph in the manifest, as an attacker would."""
    path = bundle / "model.fp32.onnx"
    entry = {"file": path.name, "size_bytes": path.stat().st_size, "sha256": sha256_file(path)}
    _edit_manifest(bundle, lambda manifest: manifest["variants"][0].update(model=entry))


def _move_weights(bundle: Path, location: str) -> None:
    """Let the FP32 graph read its weights from another file."""
    graph = onnx.load(bundle / "model.fp32.onnx", load_external_data=False)
    for tensor in graph.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    (bundle / "model.fp32.onnx").write_bytes(graph.SerializeToString())
    _list_graph(bundle)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    "location", ["secret.onnx.data", "model.int8.onnx.data", "../secret", "/etc/passwd", "*/_ORT_MEM_ADDR_/*"]
)
def test_weights_that_the_manifest_does_not_list_are_refused(
    bundle: Path, tmp_path: Path, location: str, verify: bool
) -> None:
    (tmp_path / "secret").write_bytes((bundle / "model.fp32.onnx.data").read_bytes())
    (bundle / "secret.onnx.data").symlink_to(tmp_path / "secret")
    _move_weights(bundle, location)
    message = (
        f"model.fp32.onnx: the graph reads weights from '{location}', and the manifest lists 'model.fp32.onnx.data'"
    )
    with pytest.raises(BundleError, match=re.escape(message)):
        load(bundle, precision="fp32", verify=verify, allow_links=True)


def test_weights_are_refused_where_the_manifest_lists_none(bundle: Path) -> None:
    _edit_manifest(bundle, lambda manifest: manifest["variants"][0].update(external_data=None))
    with pytest.raises(
        BundleError, match=r"reads weights from 'model\.fp32\.onnx\.data', and .* lists no external data"
    ):
        load(bundle, precision="fp32")
    with pytest.raises(BundleError, match="lists no external data"):
        tune(bundle, rounds=1)
    assert "lists no external data" in next(check.detail for check in verify(bundle) if not check.passed)


def _hidden_in(place: str, tensor: onnx.TensorProto) -> onnx.ModelProto:
    """Return a model that has a tensor where a simple search would not find it."""
    constant = helper.make_node("Constant", [], ["x"], value=tensor)
    graph = helper.make_graph([constant], "inner", [], [helper.make_tensor_value_info("x", 1, [4])])
    model = helper.make_model(helper.make_graph([], "g", [], []))
    match place:
        case "constant":
            model.graph.node.append(constant)
        case "subgraph":
            node = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)
            model.graph.node.append(node)
        case "function":
            model.functions.append(helper.make_function("d", "f", [], ["x"], [constant], []))
        case "sparse":
            model.graph.sparse_initializer.add().values.CopyFrom(tensor)
        case "attribute list":
            model.graph.node.append(helper.make_node("N", [], ["y"], tensors=[tensor]))
        case "graph list":
            model.graph.node.append(helper.make_node("N", [], ["y"], graphs=[graph]))
    return model


@pytest.mark.parametrize("place", ["constant", "subgraph", "function", "sparse", "attribute list", "graph list"])
def test_external_files_are_found_everywhere(tmp_path: Path, place: str) -> None:
    tensor = onnx.TensorProto(name="t", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="location", value="über.bin")
    path = tmp_path / "model.onnx"
    path.write_bytes(_hidden_in(place, tensor).SerializeToString())
    assert read_onnx_file(path).external_files == {"über.bin"}


def test_damaged_graphs_never_crash_the_scan(bundle: Path, tmp_path: Path) -> None:
    content, rng = (bundle / "model.fp32.onnx").read_bytes(), random.Random(0)
    path = tmp_path / "model.onnx"
    for size in (0, 1, 7, len(content) // 2):
        path.write_bytes(content[:size])
        with suppress(BundleError):
            read_onnx_file(path)
    for _ in range(100):
        damaged = bytearray(content)
        for _ in range(3):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        with suppress(BundleError):
            read_onnx_file(path)


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
