"""The export from Python: no traces of the machine, and embeddings of fewer dimensions."""

import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bert_export import export
from bert_export.calibration_texts import reference_texts
from bert_export.errors import ExportError
from bert_runtime import BertError, load
from bert_runtime.cpu.native_kernels import kernel_names
from bert_runtime.tasks import stack_single_window


def test_graphs_hold_no_paths_of_the_exporting_machine(classifier_bundle: Path) -> None:
    for precision in ("fp32", "int8"):
        content = (classifier_bundle / f"model.{precision}.onnx").read_bytes()
        assert str(Path(__file__).parents[2]).encode() not in content
        assert b"site-packages" not in content
        graph = ir.load(classifier_bundle / f"model.{precision}.onnx").graph
        assert not any(node.metadata_props for node in graph)


def test_reference_texts_are_unique_and_vary_in_length() -> None:
    texts = reference_texts()
    lengths = sorted(len(text.split()) for text in texts)
    assert len(set(texts)) == len(texts) >= 200
    assert lengths[0] <= 5
    assert lengths[-1] >= 60


def test_fewer_dimensions_are_the_first_ones_normalized_again(
    embedding_checkpoint: Path, embedding_bundle: Path, tmp_path: Path
) -> None:
    manifest = export(embedding_checkpoint, tmp_path / "bundle", dimensions=5)
    assert manifest.output.axes == ("batch", 5)
    texts = ["hello", "where is my card?"]
    whole, found = (
        stack_single_window(load(bundle, precision="fp32").outputs(texts))
        for bundle in (embedding_bundle, tmp_path / "bundle")
    )
    expected = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    assert np.abs(found - expected).max() <= 1e-6


@pytest.mark.parametrize("dimensions", [None, 5])
def test_layer_norm_centers_the_whole_vector_before_the_cut(
    embedding_checkpoint: Path, embedding_bundle: Path, tmp_path: Path, dimensions: int | None
) -> None:
    precisions = ["fp32"] if dimensions else None  # the other one in INT8, too
    manifest = export(
        embedding_checkpoint, tmp_path / "bundle", dimensions=dimensions, layer_norm=True, precisions=precisions
    )
    assert manifest.task.to_dict()["layer_norm"] is True
    texts = ["hello", "where is my card?"]
    whole = load(embedding_bundle, precision="fp32").encode(texts)
    expected = (whole - whole.mean(axis=1, keepdims=True))[:, :5]  # LayerNorm's scale does not survive normalization
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    for variant in manifest.variants:
        found = load(tmp_path / "bundle", precision=variant.precision).encode(texts, dimensions=5)
        np.testing.assert_allclose(found, expected, atol=1e-6 if variant.precision == "fp32" else 0.1)


def test_layer_norm_of_other_tasks_is_refused(classifier_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="with sentence-embedding alone, found the task text-classification"):
        export(classifier_checkpoint, tmp_path / "bundle", layer_norm=True)


def test_a_mount_point_is_refused_before_any_work(
    classifier_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda self: self == tmp_path.resolve())
    (link := tmp_path.with_name("link")).symlink_to(tmp_path)
    for output in (tmp_path, link):
        with pytest.raises(BertError, match="is a mount point, which cannot be replaced; name a folder in it"):
            export(classifier_checkpoint, output)
    monkeypatch.chdir(link)
    with pytest.raises(BertError, match="mount point"):
        export(classifier_checkpoint, Path())


def test_assumed_pooling_is_a_warning(embedding_checkpoint: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(embedding_checkpoint, tmp_path / "copy"))
    (copy / "modules.json").unlink()
    lines: list[str] = []
    export(copy, tmp_path / "bundle", task="sentence-embedding", precisions=["fp32"], progress=lines.append)
    assert any(line.startswith(f"warning: {copy}: no modules.json says how tokens are pooled, mean") for line in lines)


def test_pooling_can_be_named_where_the_checkpoint_does_not(embedding_checkpoint: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(embedding_checkpoint, tmp_path / "copy"))
    (copy / "modules.json").unlink()
    lines: list[str] = []
    text = "where is my card?"
    export(copy, tmp_path / "tokens", task="feature-extraction", options={"special_tokens": True}, precisions=["fp32"])
    vectors = load(tmp_path / "tokens")(text).vectors
    for pooling, expected in (("cls", vectors[0]), ("max", vectors.max(axis=0))):
        export(
            copy, tmp_path / pooling, task="sentence-embedding", pooling=pooling, precisions=["fp32"],
            progress=lines.append,
        )  # fmt: skip
        found = load(tmp_path / pooling).encode([text])[0]
        np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-5)
    assert not any("is assumed" in line for line in lines)
    with pytest.raises(ExportError, match=r"its modules\.json says mean pooling, found 'cls'"):
        export(embedding_checkpoint, tmp_path / "x", pooling="cls")
    with pytest.raises(ExportError, match=r"expected a pooling of mean, cls, max, .*, found 'attention'"):
        export(copy, tmp_path / "x", task="sentence-embedding", pooling="attention")


def test_impossible_dimensions_are_refused(
    embedding_checkpoint: Path, classifier_checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match="expected a number of dimensions of 1 to 32, found 33"):
        export(embedding_checkpoint, tmp_path / "bundle", dimensions=33)
    with pytest.raises(ExportError, match="dimensions with sentence-embedding alone, found the task text-class"):
        export(classifier_checkpoint, tmp_path / "bundle", dimensions=3)


def test_manifest_says_what_calibrated_what_judged_and_which_kernels(
    classifier_checkpoint: Path, tmp_path: Path
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"card {number}\n" for number in range(5)), encoding="utf-8")
    lines: list[str] = []
    manifest = export(classifier_checkpoint, tmp_path / "bundle", calibrate=texts, progress=lines.append)
    found = manifest.variant("int8").quantization
    assert any(line.startswith("warning: texts.txt has 5 different inputs to calibrate INT8 on") for line in lines)
    assert f"warning: {found['calibration']['warning']}" in lines
    judged = found["judged_on"]
    assert found["calibration"]["inputs"] + judged["inputs"] == 5 + len(reference_texts())
    assert (judged["source"], judged["held_out_from_calibration"]) == ("texts.txt", True)
    assert judged["inputs"] == manifest.variant("int8").drift["texts"]
    assert manifest.extra["native_kernels"]["functions"] == list(kernel_names())
    labelled = tmp_path / "dev.csv"
    labelled.write_text("text,label\nhello,greeting\nbye,farewell\n", encoding="utf-8")
    manifest = export(
        classifier_checkpoint, tmp_path / "other", calibrate=labelled, evaluate=labelled, progress=lines.append
    )
    assert "warning: dev.csv: 2 examples tell little of what INT8 loses; give 100 or more" in lines
    judged = manifest.variant("int8").quantization["judged_on"]
    assert (judged["source"], judged["inputs"], judged["calibrated_on_too"]) == ("dev.csv", 2, True)


def test_a_folder_that_appears_meanwhile_is_not_replaced(classifier_checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"

    def write_meanwhile(stage: str) -> None:
        if stage == "timing the variants":
            output.mkdir()
            (output / "thesis").write_text("of somebody else")

    with pytest.raises(BertError, match="choose another path; the result is kept in") as raised:
        export(classifier_checkpoint, output, precisions=["fp32"], progress=write_meanwhile)
    assert [path.name for path in output.iterdir()] == ["thesis"]
    load(str(raised.value).rsplit(" ", 1)[1])
