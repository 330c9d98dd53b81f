"""The manifest: a golden file, round trips, and errors that name the key at fault."""

import hashlib
import json
import runpy
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from bert_runtime.bundle.digest import manifest_digest
from bert_runtime.bundle.manifest import FORMAT_VERSION, MANIFEST_NAME, AttentionGraph, Manifest, Variant, sha256_file
from bert_runtime.errors import BundleError, NewerFormatError

FIXTURES = Path(__file__).parents[2] / "fixtures"
GOLDEN = (FIXTURES / "bundle.v1.json").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    """The manifest that the golden file's generator describes."""
    made = runpy.run_path(str(FIXTURES / "bundle_v1.py"))["manifest"]()
    assert isinstance(made, Manifest)
    return made


def edited(edit: Callable[[dict[str, Any]], object]) -> str:
    values = json.loads(GOLDEN)
    edit(values)
    values["manifest_sha256"] = manifest_digest(values)
    return json.dumps(values)


def test_golden_file_is_what_this_release_writes(manifest: Manifest) -> None:
    assert manifest.to_json() == GOLDEN


def test_golden_file_is_read_in_full(manifest: Manifest) -> None:
    assert Manifest.from_json(GOLDEN) == manifest


def test_a_manifest_without_a_digest_is_read(manifest: Manifest) -> None:
    """As releases wrote it before there was one, or an attention graph."""
    manifest = replace(manifest, attention=None)
    text = (FIXTURES / "bundle.v1.no_digest.json").read_text(encoding="utf-8")
    assert "manifest_sha256" not in text
    assert Manifest.from_json(text) == manifest
    assert Manifest.from_json(text).to_json() == manifest.to_json()
    assert "attention" not in json.loads(manifest.to_json())


@pytest.mark.parametrize(
    ("before", "after"), [("nein", "nejn"), ("30522", "30523"), ("0.05", "0.06"), ("1b1b", "1b1c")]
)
def test_a_changed_letter_is_refused(before: str, after: str) -> None:
    changed = GOLDEN.replace(before, after, 1)
    assert changed != GOLDEN
    with pytest.raises(
        BundleError, match=r"expected values of manifest_sha256 '[0-9a-f]{64}', found .*was changed"
    ) as error:
        Manifest.from_json(changed)
    unverified = Manifest.from_json(changed, verify=False)
    digest = json.loads(unverified.to_json())["manifest_sha256"]
    assert f"put {digest} there" in str(error.value)
    assert Manifest.from_json(changed.replace(json.loads(GOLDEN)["manifest_sha256"], digest)) == unverified


def test_the_digest_is_that_of_the_values_without_timings() -> None:
    values = json.loads(GOLDEN)
    values["variants"][0]["latency_ms"] = {"1x16": 0.95}
    values["default_reason"] = "INT8 runs 2.51× as fast"
    reordered = dict(reversed(list(values.items())))
    assert manifest_digest(reordered) == values["manifest_sha256"]
    assert Manifest.from_json(json.dumps(reordered, indent=8)).default_reason == "INT8 runs 2.51× as fast"


def test_golden_file_uses_every_field(manifest: Manifest) -> None:
    """A field that reader or writer forgets then fails one of the two tests above."""
    values = json.loads(GOLDEN)
    assert values["format_version"] == FORMAT_VERSION == 1
    assert {field.name for field in fields(Manifest)} - {"extra"} == values.keys() - {
        "format_version",
        "manifest_sha256",
        "note_of_a_later_release",
    }
    for field in fields(Variant):
        assert any(getattr(variant, field.name) for variant in manifest.variants), field.name
    assert manifest.attention is not None
    assert all(getattr(manifest.attention, field.name) for field in fields(AttentionGraph))


@pytest.mark.parametrize(
    "axes", [[], [["batch", 12, "sequence"]], [["batch", "heads", "s", "s"]], [["b", 12, 1, 1], ["b", 8, 1, 1]]]
)
def test_an_attention_graph_has_one_number_of_heads(axes: list[list[str | int]]) -> None:
    def edit(values: dict[str, Any]) -> None:
        output = values["attention"]["outputs"][0]
        values["attention"]["outputs"] = [{**output, "axes": item} for item in axes]

    with pytest.raises(BundleError, match=r"^attention\.outputs: expected an output \[batch, heads, .* found \["):
        Manifest.from_json(edited(edit))


def test_keys_of_later_releases_survive_a_round_trip() -> None:
    later = edited(lambda values: values.update(license="MIT", extra="mine", hints={"a": [1, None]}))
    written = json.loads(Manifest.from_json(later).to_json())
    assert {key: written[key] for key in ("license", "extra", "hints", "note_of_a_later_release")} == {
        "license": "MIT",
        "extra": "mine",
        "hints": {"a": [1, None]},
        "note_of_a_later_release": {"nested": [1, "two", None, True]},
    }


def test_nested_keys_of_later_releases_are_ignored() -> None:
    def add(values: dict[str, Any]) -> None:
        values["variants"][0]["energy_joules"] = 3
        values["tokenizer"]["license"] = "MIT"
        values["task"]["threshold"] = 0.5

    assert Manifest.from_json(edited(add)) == Manifest.from_json(GOLDEN)


@pytest.mark.parametrize("texts", [("a [\n", "] b", "{c}  d"), ("one\ttwo", '"'), ()])
def test_texts_that_look_like_json_lists_survive(manifest: Manifest, texts: tuple[str, ...]) -> None:
    text = edited(lambda values: values.update(self_test_inputs=list(texts)))
    again = Manifest.from_json(Manifest.from_json(text).to_json())
    assert again.self_test_inputs == texts


def test_a_newer_format_is_refused_and_asks_for_a_newer_release() -> None:
    message = "format version 2, this release reads up to 1; install a newer bert-export"
    with pytest.raises(NewerFormatError, match=message):
        Manifest.from_json(edited(lambda values: values.update(format_version=2, task="something else entirely")))


@pytest.mark.parametrize("version", [None, 0, -1, "1", 1.0, True, [1]])
def test_invalid_format_versions_are_refused(version: object) -> None:
    with pytest.raises(BundleError, match=r"^format_version: expected a whole number from 1, found"):
        Manifest.from_json(edited(lambda values: values.update(format_version=version)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        (GOLDEN[:-20], "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "expected a JSON object, found list"),
        ('"bundle"', "expected a JSON object, found str"),
        ("{}", "format_version: expected a whole number from 1, found None"),
    ],
)
def test_texts_that_are_not_manifests_are_refused(text: str, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        Manifest.from_json(text)


def _remove(*path: str | int) -> Callable[[dict[str, Any]], object]:
    def edit(values: Any) -> None:
        *parents, last = path
        for key in parents:
            values = values[key]
        del values[last]

    return edit


def _put(value: object, *path: str | int) -> Callable[[dict[str, Any]], object]:
    def edit(values: Any) -> None:
        *parents, last = path
        for key in parents:
            values = values[key]
        values[last] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_remove("task"), "manifest: missing 'task'"),
        (_remove("self_test_inputs"), "manifest: missing 'self_test_inputs'"),
        (_remove("variants", 1, "opset"), r"variants\[1\]: missing 'opset'"),
        (_remove("variants", 0, "model", "sha256"), r"variants\[0\].model: missing 'sha256'"),
        (_remove("task", "labels"), "labels"),
        (_put("128", "max_tokens"), "max_tokens: expected a whole number, found '128'"),
        (_put(12.5, "max_tokens"), "max_tokens: expected a whole number, found 12.5"),
        (_put(True, "pad_token_id"), "pad_token_id: expected a whole number, found True"),
        (_put([], "tokenizer"), r"tokenizer: expected an object, found \[\]"),
        (_put({}, "variants"), r"variants: expected a list, found \{\}"),
        (_put("int8", "variants", 1), r"variants\[1\]: expected an object, found 'int8'"),
        (
            _put(3, "variants", 1, "instruction_set"),
            r"variants\[1\].instruction_set: expected a string or null",
        ),
        (
            _put("1e-4", "variants", 0, "self_test", "tolerance"),
            r"variants\[0\].self_test.tolerance: .*a number",
        ),
        (
            _put("x", "variants", 0, "self_test", "outputs", 1, 2),
            r"variants\[0\].self_test.outputs\[1\]\[2\]: ",
        ),
        (_put(1.5, "inputs", 2, "axes", 1), r"inputs\[2\].axes\[1\]: expected a string or a whole number, found 1.5"),
        (_put("text-classification", "task"), "task: expected an object, found 'text-classification'"),
        (_put("translation", "task", "name"), "unknown task 'translation'; this release knows text-classification"),
        (_put([6], "variants", 0, "latency_ms"), r"variants\[0\].latency_ms: expected an object, found \[6\]"),
        (
            _put(6, "variants", 0, "fusions", "attention"),
            r"variants\[0\].fusions.attention: expected an object",
        ),
        (_put("fp16", "default_precision"), "the bundle has no variant 'fp16'; it has fp32, int8"),
        (_put([], "variants"), "no variant"),
        (
            lambda values: values["task"]["labels"].pop(),
            r"output.axes: expected a last axis of 2, as many as the labels .* of the task text-classification, found",
        ),
    ],
)
def test_errors_name_the_path_of_the_key(edit: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        Manifest.from_json(edited(edit))


def test_all_missing_keys_are_named_at_once() -> None:
    def edit(values: dict[str, Any]) -> None:
        del values["task"], values["output"], values["max_tokens"]

    with pytest.raises(BundleError, match="manifest: missing 'task', 'max_tokens', 'output'"):
        Manifest.from_json(edited(edit))


def test_optional_keys_have_defaults() -> None:
    def edit(values: dict[str, Any]) -> None:
        for key in ("default_reason", "source", "versions", "machine", "note_of_a_later_release"):
            del values[key]
        for key in ("instruction_set", "fusions", "int8_flops_share", "parity", "drift", "metrics", "latency_ms"):
            values["variants"][1].pop(key)

    manifest = Manifest.from_json(edited(edit))
    int8 = manifest.variant("int8")
    assert (manifest.default_reason, manifest.source, manifest.extra) == ("", {}, {})
    assert (int8.instruction_set, int8.fusions, int8.int8_flops_share, int8.metrics) == (None, {}, 0.0, {})


def test_whole_numbers_are_accepted_as_floats(manifest: Manifest) -> None:
    read = Manifest.from_json(edited(_put(1, "variants", 1, "int8_flops_share"))).variant("int8").int8_flops_share
    assert read == 1.0
    assert isinstance(read, float)


def test_self_test_pairs_stay_pairs(manifest: Manifest) -> None:
    assert Manifest.from_json(GOLDEN).self_test_inputs[1] == ("A man sings.", "Someone makes music.")


def test_assets_are_the_tokenizer_and_every_graph(manifest: Manifest) -> None:
    assert [asset.file for asset in manifest.assets] == [
        "tokenizer.json",
        "model.fp32.onnx",
        "model.int8.onnx",
        "model.int8.onnx.data",
        "model.fp16.onnx",
        "model.fp16.onnx.data",
        "model.fp16.unmasked.onnx",
        "model.fp16.packed.onnx",
        "model.attention.onnx",
        "model.fp32.onnx.data",
    ]


def test_variants_are_found_by_precision_target_and_padding() -> None:
    manifest = Manifest.from_json(GOLDEN)
    assert [variant.precision for variant in manifest.variants_for("cpu")] == ["fp32", "int8"]
    assert manifest.variant("fp16", "cuda").model.file == "model.fp16.onnx"
    others = manifest.padding_variants(manifest.variant("fp16", "cuda"))
    assert {padding: (variant.model.file, variant.title) for padding, variant in others.items()} == {
        "unmasked": ("model.fp16.unmasked.onnx", "fp16 cuda unmasked"),
        "packed": ("model.fp16.packed.onnx", "fp16 cuda packed"),
    }
    assert manifest.padding_variants(manifest.variant("fp32")) == {}
    with pytest.raises(BundleError, match="no variant 'fp16'; it has fp32, int8"):
        manifest.variant("fp16")
    with pytest.raises(BundleError, match="no variant 'int8' for cuda; it has fp16"):
        manifest.variant("int8", "cuda")


def test_bundles_without_targets_are_for_the_cpu() -> None:
    def edit(values: dict[str, Any]) -> None:
        del values["variants"][2:]
        for variant in values["variants"]:
            for key in ("target", "form", "kept_fp32", "evaluated_on"):
                del variant[key]
        for spec in values["inputs"]:
            del spec["below"]

    manifest = Manifest.from_json(edited(edit))
    assert [variant.target for variant in manifest.variants] == ["cpu", "cpu"]
    assert manifest.variants_for("cuda") == ()
    assert [spec.exclusive_max for spec in manifest.inputs] == [None] * 3


def test_reading_names_the_file_at_fault(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text(edited(_put("128", "max_tokens")), encoding="utf-8")
    with pytest.raises(BundleError) as caught:
        Manifest.read(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'bundle.json'}: max_tokens: expected a whole number, found '128'"
    (tmp_path / MANIFEST_NAME).write_text(edited(_put(9, "format_version")), encoding="utf-8")
    with pytest.raises(NewerFormatError, match=r"bundle\.json: the bundle has format version 9"):
        Manifest.read(tmp_path)


def test_paths_that_are_not_bundles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    (tmp_path / "folder").mkdir()
    for name, found in (("file", "a file"), ("folder", "none"), ("absent", "no such directory")):
        message = f"{name}: expected a bundle (a directory with bundle.json), found {found}; make one with: bert-export"
        with pytest.raises(BundleError) as caught:
            Manifest.read(tmp_path / name)
        assert message in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 5000, "a/" * 2500, "a\0b"], ids=["long", "deep", "NUL"])
def test_paths_that_no_folder_can_have_are_refused(name: str) -> None:
    with pytest.raises(BundleError, match=r"bundle\.json: cannot be read|expected a bundle"):
        Manifest.read(Path(name))


def test_a_manifest_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(b"\xff\xfe{}")
    with pytest.raises(BundleError, match=r"bundle\.json: cannot be read"):
        Manifest.read(tmp_path)


def test_sha256_of_a_file(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert sha256_file(tmp_path / "file") == hashlib.sha256(content).hexdigest()
