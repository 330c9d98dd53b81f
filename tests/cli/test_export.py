"""`bert-export export`: a complete bundle or none, overwriting, INT8 and its conditions."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import Result
from onnx import numpy_helper

from bert_export import variants
from bert_export.calibration_texts import reference_texts
from bert_export.cli.export import _STAGES_S
from bert_export.errors import ParityError
from bert_export.quantization import calibrated_weight
from bert_export.variants import BuildContext
from bert_models import EncoderConfig, TaskModel, save_model
from bert_runtime import Manifest, load
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.tasks import TextClassification

Run = Callable[..., Result]
WRONG = {"greeting": "farewell", "farewell": "question", "question": "greeting"}


@pytest.fixture
def fails_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make exports fail after writing their first graph, without the seconds that capturing takes."""

    def write_then_fail(context: BuildContext) -> None:
        (context.folder / "model.fp32.onnx").write_bytes(b"half a graph")
        raise ParityError("the exported graph differs from PyTorch")

    monkeypatch.setattr("bert_export.exporter.capture_fused", write_then_fail)


@pytest.fixture(scope="module")
def labelled(classifier_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference texts with the labels that FP32 predicts, one in ten replaced by a wrong one."""
    path = tmp_path_factory.mktemp("labelled") / "labelled.jsonl"
    texts = reference_texts()
    labels = [result.label for result in load(classifier_bundle, precision="fp32")(texts)]
    labels = [WRONG[label] if i % 10 == 0 else label for i, label in enumerate(labels)]
    rows = [json.dumps({"sentence": text, "label": label}) for text, label in zip(texts, labels, strict=True)]
    path.write_text("\n".join(rows) + "\n")
    return path


def latencies(fp32: float, int8: float) -> Callable[..., Mapping[str, Mapping[str, float]]]:
    """Replace timing, which depends on the machine's load."""
    return lambda runs, task, max_tokens: {
        name: {"1x16": ms / 8, "1x64": ms} for name, ms in (("fp32", fp32), ("int8", int8)) if name in runs
    }


def test_export_writes_bundle_and_prints_summary(run: Run, classifier_checkpoint: Path, output_folder: Path) -> None:
    result = run("export", classifier_checkpoint, output_folder / "new" / "bundle")
    assert result.exit_code == 0
    bundle = output_folder / "new" / "bundle"
    assert [path.name for path in (output_folder / "new").iterdir()] == ["bundle"]
    assert sorted(path.name for path in bundle.iterdir()) == [
        "README.md", "bundle.json", "model.fp32.onnx", "model.fp32.onnx.data", "model.int8.onnx",
        "model.int8.onnx.data", "tokenizer.json",
    ]  # fmt: skip
    assert bundle.stat().st_mode & 0o777 == 0o755
    assert re.fullmatch(
        rf"""{bundle}: text-classification
variant +size  1x16, ms  1x64, ms  speed  fidelity
fp32 +0\.1 MB +[\d.]+ +[\d.]+  1\.00×  at most \S+ from PyTorch
int8 +0\.1 MB +[\d.]+ +[\d.]+  \d\.\d\d×  label_agreement [\d.]+ with FP32 on 80 texts

default: (int8|fp32), since no labelled file was given; .+
""",
        result.stdout,
    )
    assert result.stdout.splitlines()[1] in run("inspect", bundle).stdout
    *lines, predict, tune = result.stderr.splitlines()
    assert predict == f"next: bert-export predict {bundle} TEXT"
    assert tune == f"next: bert-export tune {bundle}   # on the machine that will serve it"
    stages = [re.fullmatch(r" *\d+\.\d s  (.+)", line) for line in lines]
    shown_stages = [stage[1] for stage in stages if stage is not None]
    expected = [name for name in _STAGES_S for stage in shown_stages if stage.startswith(name)]
    assert [next(name for name in _STAGES_S if stage.startswith(name)) for stage in shown_stages] == expected
    assert list(dict.fromkeys(expected)) == [stage for stage in _STAGES_S if "bf16" not in stage]
    assert all(stages)
    assert [stage[1] for stage in stages if stage][:2] == [
        "reading the checkpoint",
        "capturing the graph with torch.onnx",
    ]
    assert run("verify", shutil.copytree(bundle, output_folder / "elsewhere")).exit_code == 0


def test_json_and_a_single_precision(run: Run, embedding_checkpoint: Path, output_folder: Path) -> None:
    (output_folder / "bundle").mkdir()  # an empty folder is no obstacle
    options = ["--precision", "fp32", "--max-tokens", "20", "--json"]
    result = run("export", embedding_checkpoint, output_folder / "bundle", *options)
    assert result.exit_code == 0
    manifest = json.loads(result.stdout)
    assert manifest == json.loads((output_folder / "bundle" / "bundle.json").read_text(encoding="utf-8"))
    assert [variant["precision"] for variant in manifest["variants"]] == ["fp32"]
    assert (manifest["default_precision"], manifest["default_reason"]) == ("fp32", "the only variant")
    assert manifest["max_tokens"] == 20
    assert load(output_folder / "bundle").tokenizer.max_tokens == 20


def test_existing_bundle_is_replaced_only_with_force(
    run: Run, classifier_checkpoint: Path, classifier_bundle: Path, output_folder: Path
) -> None:
    bundle = Path(shutil.copytree(classifier_bundle, output_folder / "bundle"))
    before = {path.name: path.read_bytes() for path in bundle.iterdir()}
    refused = run("export", classifier_checkpoint, bundle)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == f"Error: {bundle}: a bundle is already there; replace it with --force\n"
    assert {path.name: path.read_bytes() for path in bundle.iterdir()} == before

    (bundle / "left over").write_text("from before")
    spared = run("export", classifier_checkpoint, bundle, "--force")
    assert spared.exit_code == 1
    assert "besides the bundle there is also left over, which would be lost; move that elsewhere first" in spared.stderr
    assert (bundle / "left over").read_text() == "from before"
    (bundle / "left over").unlink()
    (bundle / "tuning.json").write_text("{}")
    replaced = run("export", classifier_checkpoint, bundle, "--force", "--precision", "fp32")
    assert replaced.exit_code == 0
    assert sorted(path.name for path in bundle.iterdir()) == [
        "README.md", "bundle.json", "model.fp32.onnx", "model.fp32.onnx.data", "tokenizer.json",
    ]  # fmt: skip
    assert [path.name for path in output_folder.iterdir()] == ["bundle"]


@pytest.mark.parametrize("kind", ["folder", "file", "checkpoint"])
def test_force_does_not_overwrite_other_files(
    run: Run, classifier_checkpoint: Path, broken: Path, output_folder: Path, kind: str
) -> None:
    path = broken if kind == "checkpoint" else output_folder / "precious"
    if kind == "folder":
        path.mkdir()
        (path / "thesis.txt").write_text("precious")
    if kind == "file":
        path.write_text("precious")
    for options in ([], ["--force"]):
        result = run("export", classifier_checkpoint, path, *options)
        assert result.exit_code == 1
        assert result.stderr == f"Error: {path}: exists and is not a bundle; choose another path\n"
    if kind == "checkpoint":
        assert (path / "model.safetensors").is_file()
    else:
        assert (path / "thesis.txt" if kind == "folder" else path).read_text() == "precious"


@pytest.mark.usefixtures("fails_late")
def test_failed_export_leaves_no_files(run: Run, classifier_checkpoint: Path, output_folder: Path) -> None:
    for path in (output_folder / "bundle", output_folder / "not" / "there" / "yet"):
        result = run("export", classifier_checkpoint, path)
        assert result.exit_code == 1
        assert result.stderr.endswith("\nError: the exported graph differs from PyTorch\n")
        assert list(output_folder.iterdir()) == []


@pytest.mark.usefixtures("fails_late")
def test_failed_export_keeps_the_existing_bundle(
    run: Run, classifier_checkpoint: Path, classifier_bundle: Path, output_folder: Path
) -> None:
    bundle = Path(shutil.copytree(classifier_bundle, output_folder / "bundle"))
    assert run("export", classifier_checkpoint, bundle, "--force").exit_code == 1
    assert [path.name for path in output_folder.iterdir()] == ["bundle"]
    assert run("verify", bundle).exit_code == 0


def test_interrupted_export_leaves_no_files(
    run: Run, classifier_checkpoint: Path, output_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bert_export.cpu.capture", interrupt)
    result = run("export", classifier_checkpoint, output_folder / "bundle")
    assert result.exit_code == 1
    assert "Aborted!" in result.stderr
    assert list(output_folder.iterdir()) == []


def test_graph_that_differs_from_pytorch_fails_the_export(
    run: Run, classifier_checkpoint: Path, output_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make the reference differ from the graph."""
    reference = "bert_export.parity.reference_outputs"
    monkeypatch.setattr(reference, lambda model, batch: np.full((len(batch.input_ids), 3), 9, dtype=np.float32))
    result = run("export", classifier_checkpoint, output_folder / "bundle")
    assert result.exit_code == 1
    assert "differs from PyTorch by more than 1e-04 on inputs that are unpadded (" in result.stderr
    assert "left-padded (" in result.stderr
    assert list(output_folder.iterdir()) == []


def test_bundle_that_fails_verification_is_not_kept(
    run: Run, classifier_checkpoint: Path, output_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "self_test_of", _wrong(variants.self_test_of))
    result = run("export", classifier_checkpoint, output_folder / "bundle", "--precision", "fp32")
    assert result.exit_code == 1
    assert "the finished bundle fails its own verification: self-test fp32: max abs difference" in result.stderr
    assert list(output_folder.iterdir()) == []


def _wrong(self_test: Callable[..., Any]) -> Callable[..., Any]:
    def record(runner: object, probe: object, tolerance: float) -> Any:
        right = self_test(runner, probe, tolerance)
        return type(right)(outputs=tuple(tuple(x + 1 for x in row) for row in right.outputs), tolerance=tolerance)

    return record


def test_int8_becomes_default_if_accurate_and_faster(
    run: Run, classifier_checkpoint: Path, labelled: Path, output_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert_export.exporter.median_latencies_ms", latencies(fp32=4, int8=2))
    # Random weights agree less than trained ones.
    monkeypatch.setattr(TextClassification, "agreement_floor", ("label_agreement", 0.9))
    options = ["--evaluate", labelled, "--columns", "text=sentence", "--max-drop", "5", "--json"]
    manifest = json.loads(run("export", classifier_checkpoint, output_folder / "bundle", *options).stdout)
    fp32, int8 = manifest["variants"]
    assert fp32["metrics"]["accuracy"] == 0.9
    assert fp32["metrics"]["examples"] == int8["metrics"]["examples"] == len(reference_texts())
    assert int8["metrics"]["accuracy"] >= 0.85
    assert manifest["default_precision"] == "int8"
    assert re.search(
        r"against 0\.9000 in FP32 .* where 5 are allowed; .*; INT8 runs 2\.00× as fast", manifest["default_reason"]
    )
    assert load(output_folder / "bundle").variant.precision == "int8"  # type: ignore[union-attr]


def test_calibration_is_recorded_and_repeats(run: Run, classifier_checkpoint: Path, output_folder: Path) -> None:
    texts = output_folder / "texts.txt"
    texts.write_text("".join(f"my card is lost {i}\n" for i in range(240)))
    built_in, first, second = output_folder / "built-in", output_folder / "first", output_folder / "second"
    assert run("export", classifier_checkpoint, built_in).exit_code == 0
    for bundle in (first, second):
        result = run("export", classifier_checkpoint, bundle, "--calibrate", texts, "--precision", "int8")
        assert result.exit_code == 0
    shown = run("inspect", second).stdout
    assert "calibrated on: 160 inputs of texts.txt, " in shown
    assert "judged on: 80 inputs of texts.txt\n" in shown
    assert "calibrating INT8 on 160 inputs of texts.txt" in result.stderr
    for name in ("model.int8.onnx", "model.int8.onnx.data"):
        contents = [(bundle / name).read_bytes() for bundle in (first, second, built_in)]
        assert contents[0] == contents[1] != contents[2]
    recipe = Manifest.read(first).variant("int8").quantization
    assert recipe["calibration"] == {
        "source": "texts.txt", "sha256": sha256_file(texts), "inputs": 160, "tokens": recipe["calibration"]["tokens"],
        "headroom": 1.15,
    }  # fmt: skip
    assert (recipe["smoothed"], recipe["smoothed_in_values"]) == (5, 2)  # qkv, kv, query, up, up; and each attention
    assert Manifest.read(first).variant("int8").drift["texts"] == 80
    assert Manifest.read(built_in).variant("int8").quantization["calibration"]["source"] == "built-in texts"


def test_7_bit_weights_need_no_instruction_set(run: Run, classifier_checkpoint: Path, output_folder: Path) -> None:
    assert run("export", classifier_checkpoint, output_folder / "bundle", "--weight-bits", 7).exit_code == 0
    variant = Manifest.read(output_folder / "bundle").variant("int8")
    assert (variant.instruction_set, variant.quantization["weight_bits"]) == (None, 7)
    constants = onnx.load(output_folder / "bundle" / "model.int8.onnx").graph.initializer
    weights = [numpy_helper.to_array(constant) for constant in constants if constant.data_type == onnx.TensorProto.INT8]
    assert len(weights) == 9
    assert {int(np.abs(weight).max()) for weight in weights} == {64}
    assert run("export", classifier_checkpoint, output_folder / "other", "--weight-bits", 6).exit_code == 2


def test_shared_layers_are_exported_with_7_bit_weights(
    run: Run,
    toy_config: EncoderConfig,
    classifier_checkpoint: Path,
    output_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(toy_config, family="albert", num_layer_groups=1, embedding_size=16)
    torch.manual_seed(0)
    (output_folder / "albert").mkdir()
    model = TaskModel(config, TextClassification(labels=("a", "b")))
    save_model(model, output_folder / "albert", tokenizer_from=classifier_checkpoint)
    refused = run("export", output_folder / "albert", output_folder / "bundle", "--weight-bits", 8)
    assert (refused.exit_code, list(output_folder.iterdir())) == (1, [output_folder / "albert"])
    assert "where layers share them, as in albert; leave --weight-bits out, or give 7" in refused.stderr
    assert run("export", output_folder / "albert", output_folder / "bundle").exit_code == 0
    assert Manifest.read(output_folder / "bundle").variant("int8").quantization["weight_bits"] == 7
    expected = load(output_folder / "bundle", precision="fp32")(["hello there", "my card"])
    monkeypatch.setattr("bert_runtime.cpu.session.has_instruction_set", lambda name: False)
    found = load(output_folder / "bundle", precision="int8")(["hello there", "my card"])
    assert [result.scores for result in found] == [pytest.approx(result.scores, abs=0.05) for result in expected]


def test_inaccurate_int8_does_not_become_default(
    run: Run, classifier_checkpoint: Path, labelled: Path, output_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights rounded to three values make the model inaccurate, but not slower."""

    def destroy(weight: np.ndarray, inputs: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
        scale = np.abs(weight).max(axis=0).astype(np.float32)
        return np.rint(weight / scale).astype(np.int8), scale

    monkeypatch.setattr("bert_export.exporter.median_latencies_ms", latencies(fp32=4, int8=2))
    monkeypatch.setattr(calibrated_weight, "gptq_quantize", destroy)
    options = ["--evaluate", labelled, "--columns", "text=sentence", "--max-drop", "0.5"]
    result = run("export", classifier_checkpoint, output_folder / "bundle", *options)
    assert result.exit_code == 0
    manifest = Manifest.read(output_folder / "bundle")
    assert manifest.default_precision == "fp32"
    assert manifest.variant("int8").metrics["accuracy"] < 0.88
    assert re.search(
        r"default: fp32, since INT8 accuracy 0\.\d+ against 0\.9000 .* where 0\.5 are allowed", result.stdout
    )
    assert load(output_folder / "bundle").variant.precision == "fp32"  # type: ignore[union-attr]
