"""`verify`: an intact bundle passes, and each kind of damage fails the check that covers it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_models import open_checkpoint
from bert_runtime import BundleError, load
from bert_runtime.bundle.digest import manifest_digest
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.cpu.native_kernels import kernel_names
from bert_runtime.verification import Check, self_test, verify

CopyBundle = Callable[..., Path]

GRAPHS = ["model.fp32.onnx", "model.fp32.onnx.data", "model.int8.onnx", "model.int8.onnx.data"]
SELF_TESTS = ["self-test fp32", "self-test int8"]
needs_kernels = pytest.mark.skipif(not kernel_names(), reason="no native kernels on this machine")
NAMES = ["bundle.json", "tokenizer.json", *GRAPHS, "native kernels", *SELF_TESTS]


def failed(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.detail for check in checks if not check.passed}


def rehash(bundle: Path, part: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Store the hash of a changed file in the manifest, as someone who hides a change would."""
    manifest = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    asset = part(manifest)
    path = bundle / asset["file"]
    asset.update(size_bytes=path.stat().st_size, sha256=sha256_file(path))
    manifest["manifest_sha256"] = manifest_digest(manifest)
    (bundle / "bundle.json").write_text(json.dumps(manifest), encoding="utf-8")


def fp32_model(manifest: dict[str, Any]) -> dict[str, Any]:
    model = manifest["variants"][0]["model"]
    assert isinstance(model, dict)
    return model


def fp32_weights(manifest: dict[str, Any]) -> dict[str, Any]:
    weights = manifest["variants"][0]["external_data"]
    assert isinstance(weights, dict)
    return weights


def tokenizer(manifest: dict[str, Any]) -> dict[str, Any]:
    asset = manifest["tokenizer"]
    assert isinstance(asset, dict)
    return asset


@pytest.mark.parametrize("kind", ["classifier", "embedding"])
def test_an_intact_bundle_passes(request: pytest.FixtureRequest, kind: str) -> None:
    checks = verify(request.getfixturevalue(f"{kind}_bundle"))
    assert [check.name for check in checks] == NAMES
    assert failed(checks) == {}
    assert checks[0].detail == "digest as recorded"
    assert "bytes, sha256 as recorded" in checks[1].detail
    assert "max abs difference" in checks[-1].detail


def test_a_bundle_from_before_there_was_a_digest_passes() -> None:
    """`bert-export export` wrote it, of a random model of 1 layer and 18 words, before `manifest_sha256` was added."""
    bundle = Path(__file__).parents[1] / "fixtures" / "bundle_without_digest"
    checks = verify(bundle)
    assert [check.name for check in checks] == NAMES
    assert failed(checks) == {}
    assert checks[0].detail == "has no digest"
    assert load(bundle, precision="fp32")("where is my card?").to_dict()["label"] in ("greeting", "question")


@pytest.mark.parametrize(
    ("recorded", "detail"),
    [
        (lambda here: here, r"^(none|kernels-.* with \d+ functions), as recorded$"),
        (
            lambda here: {"library": "kernels-x.so", "functions": ["Gelu"]},
            "^recorded kernels-x.so with 1 functions, here",
        ),
        (lambda here: None, "^not recorded; here "),
    ],
)
def test_other_native_kernels_are_named(
    classifier_bundle: Path, copy_bundle: CopyBundle, recorded: Callable[[Any], Any], detail: str
) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["native_kernels"] = recorded(manifest["native_kernels"])

    check = next(check for check in verify(copy_bundle(classifier_bundle, edit)) if check.name == "native kernels")
    assert check.passed
    assert re.search(detail, check.detail)


def _int8_off_by_half_the_drift(manifest: dict[str, Any]) -> None:
    int8 = manifest["variants"][1]
    int8["self_test"]["outputs"][0][0] += 0.5 * int8["drift"]["max_abs_difference"]


def _with_other_kernels(manifest: dict[str, Any]) -> None:
    manifest["native_kernels"]["library"] = "kernels-x.so"


@needs_kernels
def test_int8_of_other_kernels_may_differ_by_its_drift(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    """These quantize in other steps: more than the recorded tolerance, a quarter of the drift, is no fault."""

    def edit(manifest: dict[str, Any]) -> None:
        _int8_off_by_half_the_drift(manifest)
        _with_other_kernels(manifest)

    checks = verify(copy_bundle(classifier_bundle, edit))
    assert failed(checks) == {}
    assert "the drift from FP32, since other kernels made the recorded outputs" in checks[-1].detail


def test_int8_of_the_same_kernels_must_not(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle, _int8_off_by_half_the_drift)
    assert list(failed(verify(bundle))) == ["self-test int8"]


@needs_kernels
def test_a_model_without_kernels_is_judged_as_one_of_other_kernels(
    classifier_bundle: Path, copy_bundle: CopyBundle
) -> None:
    bundle = copy_bundle(classifier_bundle, _int8_off_by_half_the_drift)
    for kernels in (True, False):
        model = load(bundle, precision="int8", kernels=kernels)
        assert model.manifest is not None
        assert model.variant is not None
        check = self_test(model, model.manifest, model.variant)
        assert ("other kernels" in check.detail) == (not kernels)


@needs_kernels
@pytest.mark.parametrize("drift", [{}, {"max_abs_difference": float("nan")}, {"max_abs_difference": "much"}], ids=str)
def test_without_a_drift_the_recorded_tolerance_holds(
    drift: dict[str, Any], classifier_bundle: Path, copy_bundle: CopyBundle
) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        _int8_off_by_half_the_drift(manifest)
        _with_other_kernels(manifest)
        manifest["variants"][1]["drift"] = drift

    assert list(failed(verify(copy_bundle(classifier_bundle, edit)))) == ["self-test int8"]


def test_a_flipped_letter_of_a_label_is_found(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle)
    path = bundle / "bundle.json"
    path.write_text(path.read_text(encoding="utf-8").replace("greeting", "greetinh"), encoding="utf-8")
    assert list(failed(verify(bundle))) == ["bundle.json"]
    with pytest.raises(
        BundleError, match=r"bundle\.json: expected values of manifest_sha256 .* was changed or damaged"
    ):
        load(bundle)
    assert "greetinh" in load(bundle, verify=False).task.to_dict()["labels"]


def test_changed_weights_fail_the_hash_and_then_the_self_test(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle)
    weights = bundle / "model.fp32.onnx.data"
    content = bytearray(weights.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 800] = bytes(800)
    weights.write_bytes(content)
    assert list(failed(verify(bundle))) == [weights.name, "self-test fp32"]
    assert "expected sha256" in failed(verify(bundle))[weights.name]

    rehash(bundle, fp32_weights)
    assert load(bundle, precision="fp32")("hello").label, "loading does not notice the change"
    assert list(failed(verify(bundle))) == ["self-test fp32"]
    assert ", tolerance 0.0001" in failed(verify(bundle))["self-test fp32"]


def test_a_graph_of_another_variant_fails_its_self_test(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle)
    (bundle / "model.fp32.onnx").write_bytes((bundle / "model.int8.onnx").read_bytes())
    rehash(bundle, fp32_model)
    assert list(failed(verify(bundle))) == ["self-test fp32"]


def test_a_file_that_is_not_a_graph_fails_its_self_test(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle)
    (bundle / "model.fp32.onnx").write_bytes(b"not a graph")
    rehash(bundle, fp32_model)
    assert list(failed(verify(bundle))) == ["self-test fp32"]
    assert "not an ONNX graph" in failed(verify(bundle))["self-test fp32"]


def test_a_changed_vocabulary_fails_the_self_tests(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    """Two words are swapped: everything loads, and the predictions are wrong."""
    bundle = copy_bundle(classifier_bundle)
    content = json.loads((bundle / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = content["model"]["vocab"]
    vocab["the"], vocab["is"] = vocab["is"], vocab["the"]
    (bundle / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert set(failed(verify(bundle))) == {"tokenizer.json", *SELF_TESTS}
    rehash(bundle, tokenizer)
    assert "self-test fp32" in failed(verify(bundle))
    assert "tokenizer.json" not in failed(verify(bundle))


def test_token_ids_beyond_the_embedding_table_fail_the_self_tests(
    classifier_bundle: Path, copy_bundle: CopyBundle
) -> None:
    bundle = copy_bundle(classifier_bundle)
    content = json.loads((bundle / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["vocab"]["danube"] = 5000
    (bundle / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    rehash(bundle, tokenizer)
    assert list(failed(verify(bundle))) == SELF_TESTS


def test_a_file_that_is_not_a_tokenizer_fails_the_self_tests(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle)
    (bundle / "tokenizer.json").write_text("{}")
    rehash(bundle, tokenizer)
    assert list(failed(verify(bundle))) == SELF_TESTS
    assert "not a tokenizer file" in failed(verify(bundle))["self-test int8"]


def test_missing_files_are_all_named(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle)
    for name in GRAPHS:
        (bundle / name).unlink()
    assert list(failed(verify(bundle))) == [*GRAPHS, *SELF_TESTS]


def _put(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def edit(values: Any) -> None:
        *parents, last = path
        for key in parents:
            values = values[key]
        values[last] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "detail"),
    [
        (_put("variants", 0, "self_test", "outputs", 0, 0, value=9.5), "max abs difference"),
        (_put("variants", 0, "self_test", "tolerance", value=float("nan")), "tolerance nan"),
        (
            _put("variants", 0, "self_test", "outputs", value=[[1.0, 2.0, 3.0]]),
            "expected outputs of [3] values, found [3, 3, 3, 3]",
        ),
        (
            _put("variants", 0, "self_test", "outputs", 2, value=[1.0]),
            "expected outputs of [3, 3, 1, 3] values, found [3, 3, 3, 3]",
        ),
        (_put("self_test_inputs", 1, value=5), "expected a text"),
        (_put("output", "name", value="scores"), "scores"),
    ],
    ids=["value", "tolerance", "number of outputs", "size of an output", "input", "output name"],
)
def test_recorded_outputs_that_differ_fail_the_self_test(
    classifier_bundle: Path, copy_bundle: CopyBundle, edit: Callable[[dict[str, Any]], None], detail: str
) -> None:
    found = failed(verify(copy_bundle(classifier_bundle, edit)))
    assert "self-test fp32" in found
    assert detail in found["self-test fp32"]


def test_a_bundle_without_self_tests_fails(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["self_test_inputs"] = []
        for variant in manifest["variants"]:
            variant["self_test"]["outputs"] = []

    assert list(failed(verify(copy_bundle(classifier_bundle, edit)))) == SELF_TESTS


def test_a_variant_that_this_processor_cannot_run_is_skipped(
    classifier_bundle: Path, copy_bundle: Callable[..., Path]
) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["variants"][1]["instruction_set"] = "avx10_2"

    checks = verify(copy_bundle(classifier_bundle, edit))
    assert failed(checks) == {}
    assert checks[-1] == Check("self-test int8", True, "this processor has no avx10_2", skipped=True)


def test_a_folder_without_a_manifest_is_an_error(tmp_path: Path, classifier_checkpoint: Path) -> None:
    for folder in (tmp_path, classifier_checkpoint):
        assert folder == tmp_path or open_checkpoint(folder)
        with pytest.raises(BundleError, match="expected a bundle"):
            verify(folder)
