"""Loading: which variant runs, on how many threads, and the errors for damaged bundles."""

import logging
import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bert_runtime import BundleError, InputError, NewerFormatError, load, machine
from bert_runtime.cpu.session import MIN_ONNXRUNTIME, Session
from bert_runtime.errors import DeploymentError, MissingExtraError
from bert_runtime.tasks import stack_single_window
from bert_runtime.tokenization import Batch

CopyBundle = Callable[..., Path]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_can_be_pinned(classifier_bundle: Path, threads: int) -> None:
    model = load(classifier_bundle, precision="fp32", threads=threads)
    assert repr(model) == f"Model(text-classification, fp32, {threads} threads)"
    assert model("hello").label


def test_threads_default_to_the_granted_cores(classifier_bundle: Path) -> None:
    assert load(classifier_bundle).session.threads == machine.available_cores()


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_below_one_are_refused(classifier_bundle: Path, threads: int) -> None:
    with pytest.raises(InputError, match=f"threads .*found {threads}"):
        load(classifier_bundle, threads=threads)


def test_max_batch_tokens_below_one_is_refused(classifier_bundle: Path) -> None:
    with pytest.raises(InputError, match="max_batch_tokens must be a whole number in 1 to 1,048,576, found 0"):
        load(classifier_bundle, max_batch_tokens=0)


@pytest.mark.parametrize("default", ["fp32", "int8"])
def test_auto_runs_the_default_precision(classifier_bundle: Path, copy_bundle: CopyBundle, default: str) -> None:
    model = load(copy_bundle(classifier_bundle, lambda manifest: manifest.update(default_precision=default)))
    assert model.variant is not None
    assert model.variant.precision == default


def _default_to_int8(manifest: dict[str, Any]) -> None:
    manifest["default_precision"] = "int8"


def _without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")


def test_int8_gives_the_same_outputs_without_vnni(
    classifier_bundle: Path, copy_bundle: CopyBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, texts = copy_bundle(classifier_bundle, _default_to_int8), ["hello", "where is my card?"]
    expected = stack_single_window(load(bundle).outputs(texts))
    _without_vnni(monkeypatch)
    model = load(bundle)
    assert model.variant is not None
    assert model.variant.precision == "int8"
    assert np.abs(stack_single_window(model.outputs(texts)) - expected).max() <= 1e-5


@pytest.mark.parametrize("vnni", [True, False])
def test_int8_matmuls_do_not_saturate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vnni: bool) -> None:
    if vnni and not machine.has_instruction_set("vnni"):
        pytest.skip("this processor has no VNNI")
    if not vnni:
        _without_vnni(monkeypatch)
    rng = np.random.default_rng(0)
    inputs, weight = (rng.choice(values, size=size) for values, size in (([0, 255], (3, 64)), ([-127, 127], (64, 32))))
    constants = {"weight": weight.astype(np.int8), "scale": np.float32(1), "scales": np.ones(32, np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["input_ids"], ["uint8_ids"], to=TensorProto.UINT8),
            helper.make_node(
                "MatMulIntegerToFloat", ["uint8_ids", "weight", "scale", "scales"], ["logits"], domain="com.microsoft"
            ),
        ],
        "int8_matmul",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", 64])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 32])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "model.onnx")
    ids = inputs.astype(np.int64)
    found = Session(tmp_path / "model.onnx", "logits", 1, int8=True).run(Batch(ids, np.ones_like(ids), ids * 0))
    assert (found == ids @ weight.astype(np.int64)).all()


def _require_unknown_instruction_set(manifest: dict[str, Any]) -> None:
    _default_to_int8(manifest)
    manifest["variants"][1]["instruction_set"] = "avx10_2"


def test_fp32_runs_where_int8_needs_an_unknown_instruction_set(
    classifier_bundle: Path, copy_bundle: CopyBundle, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "bert_runtime"):
        model = load(copy_bundle(classifier_bundle, _require_unknown_instruction_set))
    assert model.variant is not None
    assert model.variant.precision == "fp32"
    assert [record.getMessage() for record in caplog.records] == [
        "this processor has no avx10_2, which the int8 variant was made for; running fp32 instead"
    ]


def test_a_bundle_with_only_unknown_instruction_sets_is_refused(
    classifier_bundle: Path, copy_bundle: CopyBundle
) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        _require_unknown_instruction_set(manifest)
        del manifest["variants"][0]

    with pytest.raises(BundleError, match="no variant of this bundle runs without avx10_2; export one with fp32"):
        load(copy_bundle(classifier_bundle, edit))


def test_a_precision_that_the_bundle_lacks_is_refused(classifier_bundle: Path) -> None:
    with pytest.raises(BundleError, match="the bundle has no variant 'fp16'; it has fp32, int8"):
        load(classifier_bundle, precision="fp16")


def test_a_graph_of_another_width_than_the_labels_is_refused(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    def drop_a_label(manifest: dict[str, Any]) -> None:
        manifest["task"]["labels"].pop()
        manifest["output"]["axes"][-1] -= 1

    with pytest.raises(
        BundleError, match=r"model.*onnx: expected an output 'logits' of the shape .* found .*export it"
    ):
        load(copy_bundle(classifier_bundle, drop_a_label))


def test_token_ids_are_checked(classifier_bundle: Path) -> None:
    model = load(classifier_bundle)
    assert model.manifest is not None
    longest = model.manifest.max_tokens
    ids = np.ones((1, longest + 1), dtype=np.int64)
    with pytest.raises(InputError, match=f"expected at most {longest} tokens per sequence, found {longest + 1}"):
        model.run(Batch(ids, ids, ids * 0))
    for value in ([[1, 2]], (ids, ids, ids), {"input_ids": ids}, ids, None):
        with pytest.raises(InputError, match=r"expected a bert_runtime.Batch of three int64 arrays"):
            model.run(value)  # type: ignore[arg-type]
    assert model.run(Batch(ids[:, 1:], ids[:, 1:], ids[:, 1:] * 0)).shape[0] == 1


def _flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.fp32.onnx", "tokenizer.json"])
def test_a_changed_file_is_found_by_its_hash(classifier_bundle: Path, copy_bundle: CopyBundle, name: str) -> None:
    bundle = copy_bundle(classifier_bundle)
    _flip_a_byte(bundle / name)
    with pytest.raises(BundleError, match=rf"{name}: expected sha256 [0-9a-f]{{64}}, found [0-9a-f]{{64}}; copy"):
        load(bundle, precision="fp32")


def test_hashes_are_not_checked_with_verify_false(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle, lambda manifest: manifest["tokenizer"].update(sha256="0" * 64))
    assert load(bundle, verify=False)("hello").label
    with pytest.raises(BundleError, match="expected sha256 0000"):
        load(bundle)


def test_verify_false_is_for_sessions_that_are_opened_later_too(
    classifier_bundle: Path, copy_bundle: CopyBundle, caplog: pytest.LogCaptureFixture
) -> None:
    """A session that is refused leaves many inputs without parallel batches."""
    bundle = copy_bundle(classifier_bundle, lambda manifest: manifest["variants"][0]["model"].update(sha256="0" * 64))
    model = load(bundle, precision="fp32", threads=2, max_batch_tokens=16, verify=False)
    assert len(model(["hello"] * 64)) == 64
    assert not caplog.records


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", ["model.fp32.onnx", "tokenizer.json"])
def test_a_truncated_file_is_found_by_its_size(
    classifier_bundle: Path, copy_bundle: CopyBundle, name: str, verify: bool
) -> None:
    bundle = copy_bundle(classifier_bundle)
    size = (bundle / name).stat().st_size
    with (bundle / name).open("r+b") as stream:
        stream.truncate(size - 5)
    with pytest.raises(BundleError, match=f"{name}: expected {size} bytes, found {size - 5}; copy the bundle again"):
        load(bundle, precision="fp32", verify=verify)


@pytest.mark.parametrize("name", ["model.fp32.onnx", "tokenizer.json"])
def test_a_missing_file_is_named(classifier_bundle: Path, copy_bundle: CopyBundle, name: str) -> None:
    bundle = copy_bundle(classifier_bundle)
    (bundle / name).unlink()
    with pytest.raises(BundleError, match=f"{name}: the manifest names this file, and it is missing"):
        load(bundle, precision="fp32")


def test_files_of_other_variants_may_be_missing(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle)
    (bundle / "model.int8.onnx").unlink()
    assert load(bundle, precision="fp32")("hello").label


@pytest.mark.parametrize("file", ["../model.fp32.onnx", "sub/model.fp32.onnx", "/etc/hostname", "..", "", "a\x00b"])
@pytest.mark.parametrize("verify", [True, False])
def test_the_manifest_cannot_name_files_outside_the_bundle(
    classifier_bundle: Path, copy_bundle: CopyBundle, file: str, verify: bool
) -> None:
    bundle = copy_bundle(classifier_bundle, lambda manifest: manifest["tokenizer"].update(file=file))
    (bundle / "sub").mkdir()
    for folder in (bundle.parent, bundle / "sub"):
        (folder / "model.fp32.onnx").write_bytes((bundle / "model.fp32.onnx").read_bytes())
    with pytest.raises(BundleError, match="the manifest names"):
        load(bundle, precision="fp32", verify=verify)


def test_a_file_that_is_not_a_graph_is_refused(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle, lambda m: m["variants"][0]["model"].update(size_bytes=5))
    (bundle / "model.fp32.onnx").write_bytes(b"hello")
    with pytest.raises(BundleError, match=r"model\.fp32\.onnx: not an ONNX graph"):
        load(bundle, precision="fp32", verify=False)


def test_an_output_that_the_graph_lacks_is_refused(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle, lambda manifest: manifest["output"].update(name="scores"))
    with pytest.raises(BundleError, match="scores"):
        load(bundle, precision="fp32")("hello")


@pytest.mark.parametrize("max_tokens", [-1, 0, 2, 3])
def test_max_tokens_without_room_for_text_is_refused(
    classifier_bundle: Path, copy_bundle: CopyBundle, max_tokens: int
) -> None:
    """`tokenizers` would silently not truncate at all with less room than special tokens need: 3 around a pair."""
    bundle = copy_bundle(classifier_bundle, lambda manifest: manifest.update(max_tokens=max_tokens))
    with pytest.raises(BundleError, match="max_tokens"):
        load(bundle)


def test_paths_that_are_not_bundles_are_refused(
    tmp_path: Path, classifier_bundle: Path, copy_bundle: CopyBundle
) -> None:
    with pytest.raises(BundleError, match="expected a bundle"):
        load(tmp_path)
    with pytest.raises(BundleError, match="found no such directory"):
        load(str(tmp_path / "absent"))
    with pytest.raises(BundleError, match=r"CHECKPOINT BUNDLE$"):
        load(str(tmp_path / "absent"))
    for name in ("org/name", "org/name@v2"):
        with pytest.raises(BundleError, match=rf"found no such directory; .* with: bert-export pull {name} BUNDLE$"):
            load(name)
    with pytest.raises(NewerFormatError, match="format version 2"):
        load(copy_bundle(classifier_bundle, lambda manifest: manifest.update(format_version=2)))


def test_the_extra_is_named_where_onnxruntime_is_missing(
    classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[cpu\]'") as caught:
        load(classifier_bundle)
    assert (caught.value.module, caught.value.extra) == ("onnxruntime", "cpu")


@pytest.mark.parametrize("version", ["1.16.3", "1.23.2", "0.9"])
def test_onnxruntime_that_is_too_old_is_an_error(
    version: str, classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxruntime.__version__", version)
    message = rf"expected onnxruntime 1\.24 or newer, found {re.escape(version)}; .*pip install 'onnxruntime>=1\.24'"
    with pytest.raises(DeploymentError, match=message):
        load(classifier_bundle)


@pytest.mark.parametrize("version", ["1.24.1", "1.32.0.dev20260101", "2.0.0"])
def test_newer_onnxruntime_is_accepted(version: str, classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.__version__", version)
    assert load(classifier_bundle)("hello").label


def test_oldest_onnxruntime_is_that_of_the_package() -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"]["cpu"] == ["onnxruntime>=1.24"]
    assert MIN_ONNXRUNTIME == (1, 24)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_weights_that_are_not_mapped_outlive_their_file(
    precision: str, kernels: bool, classifier_bundle: Path, copy_bundle: CopyBundle
) -> None:
    """Mapped weights would end the process with SIGBUS, or give NaN."""
    bundle, text = copy_bundle(classifier_bundle), "where is my card?"
    expected = load(bundle, precision=precision, kernels=kernels).outputs([text])
    model = load(bundle, precision=precision, kernels=kernels, inter_threads=1, mapped=False)
    weights = bundle / f"model.{precision}.onnx.data"
    weights.write_bytes(b"\xff" * weights.stat().st_size)
    os.truncate(weights, 0)
    assert np.array_equal(stack_single_window(model.outputs([text])), stack_single_window(expected))
