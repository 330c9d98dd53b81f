"""Token vectors on the command line: layers of an export, arrays of a prediction, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_export import export
from bert_export.errors import ExportError
from bert_export.layer_selection import select_layers
from bert_runtime import FeatureExtraction, Manifest, load

from .conftest import Run

TEXTS = ["my card is lost", "hello", ""]


@pytest.fixture(scope="module")
def features_bundle(tmp_path_factory: pytest.TempPathFactory, embedding_checkpoint: Path) -> Path:
    """Both layers of the toy checkpoint, side by side, in FP32 and INT8."""
    folder = tmp_path_factory.mktemp("features") / "bundle"
    export(embedding_checkpoint, folder, task="feature-extraction", layers="-2:-1")
    return folder


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        ("-1", (12,)), ("-4:-1", (9, 10, 11, 12)), ("-4:", (9, 10, 11, 12)), (":2", (0, 1, 2)), ("0,6, 12", (0, 6, 12)),
        ("12,-2", (12, 11)), ("-13", (0,)), ("3,5:6", (3, 5, 6)), (-2, (11,)), ([-1, 1], (12, 1)), ("4:4", (4,)),
    ],
)  # fmt: skip
def test_layers_are_numbers_and_ranges(layers: Any, found: tuple[int, ...]) -> None:
    assert select_layers(layers, 12) == found


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("", "numbers and ranges, found ''; write numbers and ranges from:to, both ends included"),
        ("last", "numbers and ranges, found 'last'"),
        ("1 2", "numbers and ranges, found '1 2'"),
        ("1,,2", "numbers and ranges, found '1,,2'"),
        ("1:2:3", "numbers and ranges, found '1:2:3'"),
        ("1.5", "numbers and ranges, found '1.5'"),
        ("13", r"a layer of 0 \(the embeddings\) to 12 \(the last .*\), or -1 to -13 from the end, found 13"),
        ("-14:", "from the end, found -14"),
        ("-1:-4", "from a lower to a higher one, found '-1:-4', which is 12 to 9 of 12"),
        ([True], "from the end, found True"),
        (["1"], "from the end, found '1'"),
        (1.5, "from the end, found 1.5"),
    ],
)
def test_wrong_layers_are_refused(layers: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        select_layers(layers, 12)


def test_export_and_inspect_name_the_layers(run: Run, features_bundle: Path) -> None:
    task = Manifest.read(features_bundle).task
    assert task == FeatureExtraction(hidden_size=32, num_layers=2, layers=(1, 2))
    manifest = Manifest.read(features_bundle)
    assert manifest.output.axes == ("batch", "sequence", 64)
    assert manifest.variant("int8").drift["mean_cosine"] > 0.99
    assert "layers: 1, 2\n" in run("inspect", features_bundle).stdout
    assert "--layers -2:-1" in (features_bundle / "README.md").read_text(encoding="utf-8")
    assert run("verify", features_bundle).exit_code == 0


def test_a_lower_layer_is_a_smaller_model(run: Run, embedding_checkpoint: Path, tmp_path: Path) -> None:
    bundles = {layers: tmp_path / layers for layers in ("1", "2")}
    for layers, bundle in bundles.items():
        result = run(
            "export", embedding_checkpoint, bundle, "--task", "feature-extraction", "--layers", layers,
            "--precision", "fp32", "--word-pooling", "mean", "--no-special-tokens", "--attention",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
    first, last = (Manifest.read(bundle) for bundle in bundles.values())
    assert first.variants[0].fusions["attention"] == {"expected": 1, "found": 1}
    sizes = [manifest.variants[0].size_bytes for manifest in (first, last)]
    assert sizes[0] < sizes[1]
    assert (first.task.word_pooling, first.task.special_tokens) == ("mean", False)  # type: ignore[attr-defined]
    assert load(bundles["1"])("my cardx").tokens == ("my", "cardx")  # type: ignore[attr-defined]


def arrays_of(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return dict(arrays)


def test_predictions_as_json_and_as_arrays(run: Run, features_bundle: Path, tmp_path: Path) -> None:
    expected = load(features_bundle)(TEXTS)
    result = run("predict", features_bundle, *TEXTS, "--json")
    for line, vectors in zip(result.stdout.splitlines(), expected, strict=True):
        np.testing.assert_allclose(json.loads(line), vectors.vectors, atol=1e-4)  # type: ignore[attr-defined]
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    result = run("predict", features_bundle, "--input", file, "--output", tmp_path / "vectors.npz")
    assert result.exit_code == 0, result.output
    arrays = arrays_of(tmp_path / "vectors.npz")
    assert arrays["text_starts"].tolist() == [0, 6, 9, 11]
    for index, vectors in enumerate(expected):
        part = slice(*arrays["text_starts"][index : index + 2])
        np.testing.assert_allclose(arrays["vectors"][part], vectors.vectors, atol=1e-4)  # type: ignore[attr-defined]
        assert tuple(arrays["tokens"][part]) == vectors.tokens  # type: ignore[attr-defined]
        np.testing.assert_array_equal(arrays["offsets"][part], vectors.offsets)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(arrays["word_ids"][part], vectors.word_ids)  # type: ignore[attr-defined]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "vectors.npz"]


def test_long_results_are_printed_a_part_at_a_time(
    run: Run, features_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run("predict", features_bundle, *TEXTS, "--json").stdout
    printed: list[str] = []
    monkeypatch.setattr(sys.modules["bert_export.cli.predict"], "_MAX_WAITING_CHARACTERS", 1)
    monkeypatch.setattr("click.echo", lambda message, **_: printed.append(message))
    run("predict", features_bundle, *TEXTS, "--json")
    assert printed == expected.splitlines()


def test_embeddings_are_arrays_too(run: Run, embedding_bundle: Path, tmp_path: Path) -> None:
    result = run("predict", embedding_bundle, *TEXTS, "--output", tmp_path / "vectors.npz")
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(
        arrays_of(tmp_path / "vectors.npz")["vectors"], load(embedding_bundle).encode(TEXTS), atol=1e-5
    )


def test_arrays_of_other_results_are_refused(
    run: Run, classifier_bundle: Path, features_bundle: Path, tmp_path: Path
) -> None:
    output = tmp_path / "a.npz"
    result = run("predict", classifier_bundle, "hello", "--output", output)
    assert result.exit_code == 1
    assert "arrays hold vectors, of a bundle for feature-extraction or sentence-embedding, found text-" in result.stderr
    result = run("predict", features_bundle, "hello", "--output", output, "--on-error", "return")
    assert result.exit_code == 2
    assert "--on-error return has no place in arrays" in result.stderr
    result = run("predict", features_bundle, "hello", "--output", tmp_path / "none" / "a.npz")
    assert result.exit_code == 1
    assert "a.npz: expected a folder " in result.stderr
    result = run("predict", features_bundle, "hello", "a\udc80", "--output", output)
    assert result.exit_code == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "feature-extraction", "--layers", "3"], "a layer of 0 (the embeddings) to 2 (the last layer"),
        (["--task", "feature-extraction", "--layers", "0"], "expected a layer above 0"),
        (["--task", "feature-extraction", "--layers", "1,-2"], "expected each layer once, found 1 more than once"),
        (["--layers", "1"], "layers is a setting of feature-extraction, found the task sentence-embedding"),
        (["--layer-combination", "mean"], "layer_combination is a setting of feature-extraction, found the task"),
        (["--task", "feature-extraction", "--dimensions", "8"], "found the task feature-extraction"),
        (["--task", "feature-extraction", "--evaluate", "dev.jsonl"], "dev.jsonl:1: feature-extraction has no labels"),
    ],
)
def test_wrong_options_of_an_export_are_refused(
    run: Run,
    embedding_checkpoint: Path,
    options: list[str],
    message: str,
    output_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "dev.jsonl").write_text('{"text": "a", "label": "b"}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = run("export", embedding_checkpoint, output_folder, *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert not list(output_folder.iterdir())


def test_training_and_evaluation_are_refused(run: Run, features_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "dev.jsonl"
    file.write_text('{"text": "a", "label": "b"}\n', encoding="utf-8")
    result = run("evaluate", features_bundle, file)
    assert result.exit_code == 1
    assert f"{file}:1: feature-extraction has no labels to compare its vectors with" in result.stderr
    assert "feature-extraction" not in run("train", "--help").stdout
