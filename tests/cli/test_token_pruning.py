"""Token pruning on the command line: export with a schedule, a chosen one or none, and training with one."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from bert_export.token_pruning import candidate_schedules
from bert_runtime import Manifest, load
from bert_runtime.tasks import TextInput

Run = Callable[..., Result]
WORDS = ["card", "book", "train", "account", "film", "order", "bank", "sun", "hello", "money", "weather", "lost"]


@pytest.fixture
def long_texts(tmp_path: Path) -> Path:
    """Labelled texts of 40 words, so that tokens leave."""
    chosen = random.Random(0)
    labels = ("greeting", "question")
    rows = [{"text": " ".join(chosen.choices(WORDS, k=40)), "label": labels[i % 2]} for i in range(40)]
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_export_with_a_schedule_says_what_it_changes(
    run: Run, classifier_checkpoint: Path, classifier_bundle: Path, long_texts: Path, tmp_path: Path
) -> None:
    result = run(
        "export", classifier_checkpoint, tmp_path / "bundle", "--prune-tokens", "1:0.5", "--evaluate", long_texts
    )
    assert result.exit_code == 0, result.output
    manifest = Manifest.read(tmp_path / "bundle")
    record = manifest.extra["token_pruning"]
    assert (record["schedule"], record["min_tokens"], record["drift"]["texts"]) == ("1:0.5", 16, 40)
    assert {"metric", "pruned", "all_tokens", "drop_percent", "drop_percent_interval"} == set(record["metrics"])
    assert record["judged_on"]["source"] == "long.jsonl"
    for variant in manifest.variants:
        assert variant.fusions["token_pruning"] == {"expected": 1, "found": 1}
        assert variant.functions["KeepTokens"] == 1
    for shown in (result.stdout, run("inspect", tmp_path / "bundle").stdout):
        assert "token pruning: 1:0.5 (layer:share of a text's tokens that stays)" in shown
        assert "with all tokens on 40 texts: label_agreement" in shown
    pruned, whole = (load(bundle, precision="fp32") for bundle in (tmp_path / "bundle", classifier_bundle))
    texts = [json.loads(line)["text"] for line in long_texts.read_text().splitlines()[:4]]
    differences = [
        float(np.abs(model.outputs([TextInput(text)])[0].arrays[0] - reference.arrays[0]).max())
        for model, text in [(pruned, text) for text in (texts[0], "hello the bank")]
        for reference in whole.outputs([TextInput(text)])
    ]
    assert differences[0] > 1e-4
    assert differences[1] < 1e-5  # a short text keeps all of its tokens
    alone = [pruned.outputs([TextInput(text)])[0].arrays[0] for text in texts]
    together = [output.arrays[0] for output in pruned.outputs([TextInput(text) for text in texts])]
    np.testing.assert_allclose(alone, together, rtol=0, atol=1e-5)


def test_auto_chooses_the_strongest_schedule_within_the_limits(
    run: Run, classifier_checkpoint: Path, long_texts: Path, tmp_path: Path
) -> None:
    result = run(
        "export", classifier_checkpoint, tmp_path / "bundle", "--prune-tokens", "auto", "--evaluate", long_texts,
        "--max-drop", 100, "--precision", "fp32",
    )  # fmt: skip
    schedules = [str(schedule) for schedule in candidate_schedules(2)]
    assert schedules[0] == "1:0.8"
    if result.exit_code:  # random weights may change too much with any
        assert (
            f"no schedule of token pruning is close enough to the model with all tokens ({schedules[0]}"
            in result.stderr
        )
        assert not (tmp_path / "bundle").exists()
    else:
        record = Manifest.read(tmp_path / "bundle").extra["token_pruning"]
        assert record["schedule"] in schedules
        assert record["drift"]["label_agreement"] >= 0.97


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prune-tokens", "half"], "expected a schedule of token pruning, found 'half'; write layer:share"),
        (["--prune-tokens", "2:0.5"], "expected token pruning in the layers 1 to 1, found layer 2"),
        (["--prune-tokens", "1:0.5", "--attention"], "attention probabilities are for models that keep all tokens"),
        (["--prune-tokens", "1:0.5", "--target", "cuda"], "no fused operator here for token pruning"),
        (["--prune-tokens", "auto", "--target", "tensorrt"], "no fused operator here for token pruning"),
    ],
)
def test_what_cannot_be_pruned_is_refused_before_work(
    run: Run, classifier_checkpoint: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    result = run("export", classifier_checkpoint, tmp_path / "bundle", *options)
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert "capturing" not in result.stderr
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("schedule", ["1:0.5", "auto"])
def test_embeddings_of_the_mean_refuse_a_schedule(
    run: Run, embedding_checkpoint: Path, tmp_path: Path, schedule: str
) -> None:
    result = run("export", embedding_checkpoint, tmp_path / "bundle", "--prune-tokens", schedule)
    assert result.exit_code == 1
    assert "sentence-embedding with mean pooling reads every token" in " ".join(result.stderr.split())


def test_trained_checkpoints_prune_until_told_otherwise(
    run: Run, classifier_checkpoint: Path, long_texts: Path, tmp_path: Path
) -> None:
    trained = run(
        "train", "--base", classifier_checkpoint, "--train", long_texts, "--dev", long_texts, "--epochs", 1,
        "--output", tmp_path / "model", "--precision", "fp32", "--prune-tokens", "1:0.5", "--json",
    )  # fmt: skip
    assert trained.exit_code == 0, trained.output
    assert json.loads(trained.stdout)["token_pruning"] == "1:0.5"
    assert json.loads((tmp_path / "model" / "config.json").read_text())["token_pruning"] == "1:0.5"
    for options, expected in (([], "1:0.5"), (["--prune-tokens", "none"], None)):
        bundle = tmp_path / f"bundle{len(options)}"
        assert run("export", tmp_path / "model", bundle, "--precision", "fp32", *options).exit_code == 0
        assert Manifest.read(bundle).extra.get("token_pruning", {}).get("schedule") == expected


def test_training_for_a_task_that_reads_all_tokens_is_refused(
    run: Run, classifier_checkpoint: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"tokens": ["a", "b"], "tags": ["X", "O"]}) + "\n")
    result = run(
        "train", "--task", "token-classification", "--base", classifier_checkpoint, "--train", rows, "--dev", rows,
        "--output", tmp_path / "model", "--prune-tokens", "1:0.5",
    )  # fmt: skip
    assert result.exit_code == 1
    assert "token-classification reads every token of a text" in " ".join(result.stderr.split())
    assert not (tmp_path / "model").exists()


def test_students_learn_to_prune_from_a_teacher_that_does_not(
    run: Run, classifier_checkpoint: Path, long_texts: Path, tmp_path: Path
) -> None:
    options = ["--teacher", classifier_checkpoint, "--student", 2, "--train", long_texts, "--dev", long_texts]
    options += ["--epochs", 1, "--precision", "fp32", "--output", tmp_path / "student", "--prune-tokens", "1:0.5"]
    refused = run("distill", *options, "--attention-weight", 1)
    assert refused.exit_code == 1
    assert "attention_weight needs a student that keeps all tokens" in " ".join(refused.stderr.split())
    result = run("distill", *options, "--hidden-weight", 1, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["token_pruning"] == "1:0.5"
    assert json.loads((tmp_path / "student" / "config.json").read_text())["token_pruning"] == "1:0.5"
    compressed = run(
        "compress", tmp_path / "student", tmp_path / "small", "--train", long_texts, "--dev", long_texts, "--speedup", 2
    )
    assert compressed.exit_code == 1
    assert "expected a checkpoint that keeps all tokens" in " ".join(compressed.stderr.split())


def test_language_models_are_not_distilled_with_a_schedule(
    run: Run, classifier_checkpoint: Path, tmp_path: Path
) -> None:
    result = run(
        "distill", "--teacher", classifier_checkpoint, "--student", 1, "--corpus", tmp_path / "corpus.txt",
        "--output", tmp_path / "student", "--prune-tokens", "1:0.5",
    )  # fmt: skip
    assert result.exit_code == 2
    assert "--prune-tokens cannot be combined with --corpus" in result.stderr
