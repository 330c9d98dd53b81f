"""`bert-export predict --candidate-labels`: labels that are chosen when the model runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bert_runtime import ZeroShotClassifier, load

from ..conftest import CopyBundle

Run = Callable[..., Result]

CANDIDATES = ["card", "train", "rain"]
TEXTS = ["where is my card", "the train is late"]


@pytest.fixture
def nli_bundle(copy_bundle: CopyBundle, classifier_bundle: Path) -> Path:
    """The toy classifier with the labels of natural language inference."""

    def rename(manifest: dict[str, Any]) -> None:
        manifest["task"]["labels"] = ["contradiction", "neutral", "entailment"]

    return copy_bundle(classifier_bundle, rename)


def expected(bundle: Path, **options: Any) -> list[Any]:
    classifier = ZeroShotClassifier(load(bundle, precision="fp32"), CANDIDATES, **options)
    return [classifier(text).to_dict() for text in TEXTS]


def close(values: list[Any], references: list[Any]) -> bool:
    """Return whether answers are equal, up to rounding, which depends on the batch."""
    return len(values) == len(references) and all(
        found == {**reference, "scores": pytest.approx(reference["scores"], abs=1e-5)}
        for found, reference in zip(values, references, strict=True)
    )


def test_json_has_the_shape_of_the_pipeline(run: Run, nli_bundle: Path) -> None:
    arguments = ("predict", nli_bundle, *TEXTS, "--precision", "fp32", "--candidate-labels", ",".join(CANDIDATES))
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert close(list(map(json.loads, result.stdout.splitlines())), expected(nli_bundle))
    template = run(*arguments, "--json", "--multi-label", "--hypothesis-template", "it is {}")
    options = {"multi_label": True, "hypothesis_template": "it is {}"}
    assert close(list(map(json.loads, template.stdout.splitlines())), expected(nli_bundle, **options))


def test_text_shows_the_best_label(run: Run, nli_bundle: Path) -> None:
    result = run("predict", nli_bundle, TEXTS[0], "--precision", "fp32", "--candidate-labels", ",".join(CANDIDATES))
    best = expected(nli_bundle)[0]
    assert result.stdout == f"{best['labels'][0]}\t{best['scores'][0]:.4f}\t{TEXTS[0]}\n"


def test_files_and_stdin(run: Run, nli_bundle: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "texts.jsonl", tmp_path / "answers.jsonl"
    rows = [{"text": TEXTS[0]}, {"text": "a", "text_pair": "b"}, {"text": TEXTS[1]}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    arguments = ("predict", nli_bundle, "--precision", "fp32", "--candidate-labels", ",".join(CANDIDATES))
    assert run(*arguments, "--input", source, "--output", output, "--on-error", "return").exit_code == 0
    first, failure, second = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    assert close([first, second], expected(nli_bundle))
    assert failure["error"].startswith(f"{source}:2: expected one text, found a pair")
    piped = run(*arguments, "--json", stdin="\n".join(TEXTS) + "\n")
    assert close(list(map(json.loads, piped.stdout.splitlines())), expected(nli_bundle))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--multi-label"], "--hypothesis-template and --multi-label need --candidate-labels"),
        (["--hypothesis-template", "{}"], "--hypothesis-template and --multi-label need --candidate-labels"),
        (["--candidate-labels", "a,b", "--pair", "x"], "give either --candidate-labels or --pair or --question"),
        (["--candidate-labels", "a,b", "--question", "x"], "give either --candidate-labels or --pair or --question"),
        (
            ["--candidate-labels", "a,b", "--top-k", "1"],
            "give either --candidate-labels, all of which have a score, or",
        ),
        (["--candidate-labels", "a,,b"], "expected comma-separated names"),
    ],
)
def test_wrong_usage(run: Run, nli_bundle: Path, arguments: list[str], message: str) -> None:
    result = run("predict", nli_bundle, "hello", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_evaluate_judges_the_candidate_labels(run: Run, nli_bundle: Path, tmp_path: Path) -> None:
    best = [answer["labels"][0] for answer in expected(nli_bundle)]
    wrong = next(label for label in CANDIDATES if label != best[1])
    rows = [{"text": TEXTS[0], "label": best[0]}, {"text": TEXTS[1], "label": wrong}]
    labels = ("--candidate-labels", ",".join(CANDIDATES))
    arguments = ("evaluate", nli_bundle, write_rows(tmp_path / "dev.jsonl", rows), "--precision", "fp32", *labels)
    result = run(*arguments, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["precision"], report["examples"], report["accuracy"]) == ("fp32", 2, 0.5)
    assert 0 < report["brier_score"] < 2
    several = json.loads(run(*arguments, "--json", "--multi-label").stdout)
    assert several.keys() >= {"micro_f1", "macro_f1", "exact_match", "best_threshold"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a", "label": "bus"}, "label 'bus' is not one of the model's 3 labels (card, train, rain)"),
        ({"text": "a", "text_pair": "b", "label": "card"}, "expected one text, found a pair"),
        ({"text": "a"}, "expected a field 'label'"),
    ],
)
def test_evaluate_names_the_row(run: Run, nli_bundle: Path, tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write_rows(tmp_path / "dev.jsonl", [{"text": "hello", "label": "rain"}, row])
    result = run("evaluate", nli_bundle, path, "--candidate-labels", ",".join(CANDIDATES))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{path}:2: " in result.stderr
    assert message in result.stderr


def test_evaluate_needs_labelled_texts(run: Run, nli_bundle: Path, tmp_path: Path) -> None:
    result = run("evaluate", nli_bundle, tmp_path, "--candidate-labels", "a,b")
    assert result.exit_code == 2
    assert "--candidate-labels need a FILE of texts with labels" in result.stderr
    result = run("evaluate", nli_bundle, tmp_path, "--multi-label")
    assert "--hypothesis-template and --multi-label need --candidate-labels" in result.stderr


def test_a_model_of_something_else_is_refused(run: Run, classifier_bundle: Path) -> None:
    result = run("predict", classifier_bundle, "hello", "--candidate-labels", "a,b")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: zero-shot classification needs a model of natural language inference")
