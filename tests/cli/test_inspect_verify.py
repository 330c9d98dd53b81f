"""`bert-export inspect`, `verify` and `tune`."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bert_runtime.installation import install_command
from bert_runtime.machine import available_cores

Run = Callable[..., Result]
CopyBundle = Callable[..., Path]


def test_inspect_shows_measurements(run: Run, classifier_bundle: Path) -> None:
    manifest = json.loads((classifier_bundle / "bundle.json").read_text(encoding="utf-8"))
    result = run("inspect", classifier_bundle)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[:4] == [
        f"{classifier_bundle}: text-classification",
        "labels: 3: greeting, farewell, question",
        "problem_type: single_label",
        "max_tokens: 64",
    ]
    assert any(line.startswith("made from: ") and manifest["source"]["sha256"][:12] in line for line in lines)
    assert any(line.startswith("made with: ") and f"torch {manifest['versions']['torch']}" in line for line in lines)
    assert f"default: {manifest['default_precision']} ({manifest['default_reason']})" in lines
    for name in ("fp32", "int8"):
        files = rf"model\.{name}\.onnx \+ model\.{name}\.onnx\.data"
        assert any(re.fullmatch(rf"{name} +{files}, 0\.\d MB, opset 23", line) for line in lines)
    fusions = [line for line in lines if line.startswith("fusions: ")]
    assert "attention 2/2" in fusions[0]
    assert "int8_matmul 9/9" in fusions[1]
    assert sum(line.startswith("parity with PyTorch: max_abs_error") for line in lines) == 1
    assert sum(line.startswith("drift from FP32: label_agreement") for line in lines) == 1
    assert sum(line.startswith("median latency in ms: 1x16 ") for line in lines) == 2


def test_inspect_shows_the_attention_graph(run: Run, attention_bundle: Path) -> None:
    lines = [line.strip() for line in run("inspect", attention_bundle).stdout.splitlines()]
    start = next(index for index, line in enumerate(lines) if line.startswith("attention "))
    files = r"model\.attention\.onnx \+ model\.fp32\.onnx\.data"
    assert re.fullmatch(rf"attention +{files}, 0\.0 MB more, opset 23", lines[start])
    assert lines[start + 1] == "probabilities: 2 layers of 4 heads"
    assert re.fullmatch(r"parity with PyTorch: max_abs_error \S+, tolerance 0\.0001", lines[start + 2])


def test_inspect_shortens_many_labels(run: Run, classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["task"]["labels"] = [f"intent {i}" for i in range(77)]
        manifest["output"]["axes"][-1] = 77

    bundle = copy_bundle(classifier_bundle, edit)
    assert "  labels: 77: intent 0, intent 1, intent 2, intent 3, intent 4, intent 5, intent 6, intent 7, …" in (
        run("inspect", bundle).stdout.splitlines()
    )


def test_inspect_json_is_the_manifest_and_the_plan(run: Run, embedding_bundle: Path) -> None:
    shown = json.loads(run("inspect", embedding_bundle, "--json").stdout)
    here = shown.pop("here")
    assert shown == json.loads((embedding_bundle / "bundle.json").read_text(encoding="utf-8"))
    assert (here["threads"], here["tuned"]) == (available_cores(), False)


def test_inspect_shows_the_plan_of_tune(run: Run, classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle, lambda manifest: None)
    texts = bundle.parent / "texts.txt"
    texts.write_text("hello\nwhere is my card?\n", encoding="utf-8")
    result = run("tune", bundle, "--input", texts, "--rounds", 1)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["ms", "of", "one", "input", "1x16", "1x64"]
    plan = lines[-2].removeprefix("chosen: ")
    assert lines[-1] == f"wrote {bundle / 'tuning.json'}"
    assert f"  here, on the CPU: {plan} (as measured here)" in run("inspect", bundle).stdout.splitlines()
    assert json.loads(run("inspect", bundle, "--json").stdout)["here"]["tuned"] is True
    again = json.loads(run("tune", bundle, "--rounds", 1, "--json").stdout)
    assert set(again) == {"machine", "manifest_sha256", "plan", "measured"}
    assert run("verify", bundle).exit_code == 0


def test_inspect_says_why_nothing_runs_here(run: Run, classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["default_precision"] = "int8"
        manifest["variants"][1]["instruction_set"] = "avx10_2"
        del manifest["variants"][0]

    bundle = copy_bundle(classifier_bundle, edit)
    problem = "no variant of this bundle runs without avx10_2; export one with fp32"
    assert f"here, on the CPU: {problem}" in run("inspect", bundle).stdout
    assert json.loads(run("inspect", bundle, "--json").stdout)["here"] == {"problem": problem}


@pytest.mark.parametrize(("vnni", "made_for", "advised"), [(False, "vnni", 1), (True, "vnni", 0), (False, None, 0)])
def test_inspect_advises_7_bit_weights_without_vnni(
    vnni: bool,
    made_for: str | None,
    advised: int,
    run: Run,
    classifier_bundle: Path,
    copy_bundle: CopyBundle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["variants"][1]["instruction_set"] = made_for

    bundle = copy_bundle(classifier_bundle, edit)
    monkeypatch.setattr("bert_export.cli.bundle_summary.has_instruction_set", lambda name: vnni)
    assert run("inspect", bundle).stdout.count("faster here: INT8 of export --weight-bits 7") == advised


def test_damaged_tuning_file_warns_once(
    run: Run, classifier_bundle: Path, copy_bundle: CopyBundle, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = copy_bundle(classifier_bundle, lambda manifest: None)
    (bundle / "tuning.json").write_text("{")
    for options in ((), ("--json",)):
        caplog.clear()
        assert run("inspect", bundle, *options).exit_code == 0
        assert caplog.text.count("tuning.json: cannot be read") == 1


def test_inspect_keeps_unknown_manifest_keys(run: Run, classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(classifier_bundle, lambda manifest: manifest.update(license="MIT"))
    assert json.loads(run("inspect", bundle, "--json").stdout)["license"] == "MIT"


def test_inspect_works_without_onnxruntime(run: Run, classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert run("inspect", classifier_bundle).exit_code == 0


def test_verify_passes_an_intact_bundle(run: Run, classifier_bundle: Path) -> None:
    result = run("verify", classifier_bundle)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["ok", "bundle.json"],
        ["ok", "tokenizer.json"],
        ["ok", "model.fp32.onnx"],
        ["ok", "model.fp32.onnx.data"],
        ["ok", "model.int8.onnx"],
        ["ok", "model.int8.onnx.data"],
        ["ok", "native"],
        ["ok", "self-test"],
        ["ok", "self-test"],
    ]


def _damage(bundle: Path) -> Path:
    with (bundle / "model.int8.onnx.data").open("r+b") as stream:
        stream.truncate(1000)
    return bundle


def test_verify_fails_a_damaged_bundle(run: Run, classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    result = run("verify", _damage(copy_bundle(classifier_bundle)))
    assert result.exit_code == 1
    assert [line.split()[0] for line in result.stdout.splitlines()] == [*["ok"] * 5, "FAILED", "ok", "ok", "FAILED"]
    assert result.stderr == "Error: 2 of 9 checks failed; export the bundle again or make a new copy of it\n"


def test_verify_as_json(run: Run, classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    result = run("verify", _damage(copy_bundle(classifier_bundle)), "--json")
    assert result.exit_code == 1
    checks = json.loads(result.stdout)
    assert [check["passed"] for check in checks] == [*[True] * 5, False, True, True, False]
    assert {tuple(check) for check in checks} == {("name", "passed", "detail", "skipped")}
    assert run("verify", classifier_bundle, "--json").exit_code == 0


def test_verify_names_the_missing_extra(run: Run, classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle is intact, so the error must not ask for a new copy."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = run("verify", classifier_bundle)
    assert result.exit_code == 1
    assert install_command("cpu") in result.stderr
    assert "make a new copy of it" not in result.stderr


@pytest.mark.parametrize(("command", "file"), [(("tune",), "--input"), (("report", "--json"), "--evaluate")])
def test_columns_without_a_file_are_wrong_usage(
    run: Run, classifier_bundle: Path, command: tuple[str, ...], file: str
) -> None:
    result = run(command[0], classifier_bundle, *command[1:], "--columns", "text=sentence")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"--columns names the columns of a file: give that with {file}" in result.stderr
