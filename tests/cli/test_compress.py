"""`bert-export compress`: a search on toy models from end to end, what it leaves behind, and errors."""

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from bert_export.compression import search as search_module
from bert_export.compression.candidates import Candidate
from bert_export.compression.evaluator import CandidateEvaluator
from bert_export.compression.planning import Rung
from bert_models import TaskModel, load_model, open_checkpoint, save_model
from bert_models.distillation.teacher import Teacher
from bert_models.errors import CompressionError, TrainingInterruptedError
from bert_models.families import FAMILIES
from bert_models.tokenizer_files import read_tokenizer
from bert_models.training import TrainSettings, fine_tune
from bert_runtime import load
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.tasks import TextClassification
from bert_runtime.verification import verify

from .conftest import Run
from .training_data import SENTENCES, THINGS, write


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """64 training rows, 160 dev rows and 10 rows without labels."""
    folder = tmp_path_factory.mktemp("compress")
    pairs = [
        (text.format(f"{adjective} {thing}"), label)
        for label, texts in SENTENCES.items()
        for text in texts
        for thing in THINGS
        for adjective in ("new", "old", "great")
    ]
    pairs = random.Random(0).sample(pairs, len(pairs))
    texts = "text\n" + "".join(f'"{text}"\n' for text, _ in pairs[:10])
    (folder / "texts.csv").write_text(texts)
    return {
        "train": write(folder / "train.csv", pairs[:64]),
        "dev": write(folder / "dev.csv", pairs[64:224]),
        "unlabelled": folder / "texts.csv",
    }


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, classifier_checkpoint: Path, files: dict[str, Path]) -> Path:
    """A classifier of the labels `lost` and `money` with two layers."""
    folder = tmp_path_factory.mktemp("tuned") / "checkpoint"
    settings = TrainSettings(epochs=6, batch_size=16, lr=3e-3, precision="fp32")
    fine_tune("text-classification", classifier_checkpoint, files["train"], files["dev"], folder, settings)
    return folder


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """One candidate, for an epoch and then for two more, whatever the budget: toys train faster than they start."""
    monkeypatch.setattr(search_module, "plan_rungs", lambda *given: [Rung(1, 1, 64), Rung(1, 2, 64)])
    monkeypatch.setattr("bert_export.compression.measuring._TIMED_TEXTS", 6)
    monkeypatch.setattr("bert_export.compression.measuring._REST_S", 0.0)
    monkeypatch.setattr(CandidateEvaluator, "predicted_speedup", lambda self, shape: 2.2 / shape.num_layers)


def arguments(tuned: Path, files: dict[str, Path], output: Path, *more: object) -> list[object]:
    return [
        "compress", tuned, output, "--train", files["train"], "--dev", files["dev"], "--lr", 3e-3, "--batch-size", 16,
        "--copies", 1, *more,
    ]  # fmt: skip


@pytest.mark.slow
def test_a_search_from_end_to_end(
    run: Run, tuned: Path, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, plot = tmp_path / "small", tmp_path / "plot.png"
    given = arguments(
        tuned, files, output, "--max-drop", 30, "--unlabelled", files["unlabelled"], "--vocabulary", "cut"
    )

    def interrupt(*given: Any) -> Any:
        raise TrainingInterruptedError("interrupted")

    with monkeypatch.context() as patch:  # before the first training is over: nothing to leave behind
        patch.setattr(CandidateEvaluator, "_train", interrupt)
        result = run(*given)
    assert result.exit_code == 1
    assert "interrupted before a candidate was trained" in result.stderr
    assert not output.exists()

    monkeypatch.setattr(Teacher, "outputs", None)  # the INT8 bundle labels the rows, not the PyTorch model
    result = run(*given, "--plot", plot, "--json")
    assert result.exit_code == 0, result.output
    assert "going on with the search" in result.stderr
    found = json.loads(result.stdout)
    assert found["passed"]
    (layer,) = found["measured"][0]["layers"]  # whichever loses less without the other
    record = Manifest.read(output).extra["compression"]
    assert record["layers_kept"] == [layer]
    assert record["num_layers_before"] == 2
    assert record["vocabulary"]["after"] < record["vocabulary"]["before"]
    assert record["gate"]["rows"] + record["search"]["rows"] == 160
    assert all(check.passed for check in verify(output))
    assert load(output)("I lost my card").label == "lost"
    assert open_checkpoint(found["checkpoint"]).config.num_layers == 1
    assert plot.read_bytes().startswith(b"\x89PNG")

    for command in (("inspect", output), ("report", output, "--output", tmp_path / "report.html")):
        assert run(*command).exit_code == 0
    assert f"1 of 2 layers ({layer})" in run("inspect", output).stdout
    assert f"1 of 2 layers ({layer})" in (tmp_path / "report.html").read_text()
    card = (output / "README.md").read_text()
    assert "## Compression" in card
    assert re.search(r"^bert-export export \S+ small --calibrate \S+$", card, re.MULTILINE)

    monkeypatch.setattr(CandidateEvaluator, "_train", interrupt)  # everything is known: nothing is trained again
    shutil.rmtree(output)
    again = run(*given)
    assert again.exit_code == 0, again.output
    assert f"wrote {output}" in again.stdout
    assert Manifest.read(output).extra["compression"]["gate"] == record["gate"]


@pytest.mark.slow
def test_a_candidate_that_prunes_tokens(
    run: Run, tuned: Path, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {}
    for name in ("train", "dev"):
        rows = [line.rsplit(",", 1) for line in files[name].read_text(encoding="utf-8").splitlines()[1:]]
        long[name] = write(tmp_path / f"{name}.csv", [(" ".join([text.strip('"')] * 6), label) for text, label in rows])
    monkeypatch.setattr(
        CandidateEvaluator,
        "pool",
        lambda self, speedup: [Candidate(layers=(0, 1), intermediate_size=64, kept_percent=50)],
    )
    times = {"latency_ms": 1.0, "uncompressed_latency_ms": 2.0, "speedup": 2.0}
    monkeypatch.setattr("bert_export.compression.measuring.Reference.time", lambda self, bundle: times)
    output, plot = tmp_path / "small", tmp_path / "plot.svg"
    result = run(*arguments(tuned, long, output, "--max-drop", 60, "--plot", plot))
    assert result.exit_code == 0, result.output
    assert "1:0.5" in result.stdout
    assert "that prunes tokens (1:0.3)" in result.stderr
    manifest = Manifest.read(output)
    assert manifest.extra["compression"]["token_pruning"] == manifest.extra["token_pruning"]["schedule"] == "1:0.5"
    assert "token pruning 1:0.5" in run("inspect", output).stdout
    assert all(check.passed for check in verify(output))


@pytest.mark.slow
def test_a_model_with_a_position_bias(run: Run, files: dict[str, Path], toy_vocab: Path, tmp_path: Path) -> None:
    """MPNet adds a bias that all layers share: a model with fewer layers keeps it."""
    words = (toy_vocab / "vocab.txt").read_text(encoding="utf-8")
    base, tuned = tmp_path / "base", tmp_path / "tuned"
    base.mkdir()
    (base / "vocab.txt").write_text(f"<s>\n<pad>\n</s>\n<unk>\n{words}<mask>\n", encoding="utf-8")
    size = {"hidden_size": 32, "num_layers": 3, "num_heads": 4, "intermediate_size": 64, "max_positions": 66}
    config = FAMILIES["mpnet"].preset("base", **size, vocab_size=read_tokenizer(base, "mpnet").get_vocab_size())
    torch.manual_seed(0)
    save_model(TaskModel(config, TextClassification(labels=("a", "b"))), base, tokenizer_from=base)
    settings = TrainSettings(epochs=6, batch_size=16, lr=3e-3, precision="fp32")
    fine_tune("text-classification", base, files["train"], files["dev"], tuned, settings)
    result = run(*arguments(tuned, files, tmp_path / "small", "--max-drop", 60, "--json"))
    assert result.exit_code == 0, result.output
    student = open_checkpoint(json.loads(result.stdout)["checkpoint"])
    assert student.config.num_layers < 3
    assert load_model(student, student.task()).encoder.position_bias is not None
    assert all(check.passed for check in verify(tmp_path / "small"))


@pytest.mark.slow
def test_what_cannot_be_reached_leaves_the_best_and_exits_with_1(
    run: Run, tuned: Path, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CandidateEvaluator, "max_speedup", lambda self: 2.2)
    drop = {"drop_percent": 4.0, "drop_percent_interval": [1.0, 9.0]}
    monkeypatch.setattr(
        "bert_export.compression.run.drop_to_json",
        lambda found: {"metric": found.metric, "compressed": 0.9, "uncompressed": 1.0, "rows": found.rows, **drop},
    )
    output = tmp_path / "small"
    result = run(*arguments(tuned, files, output, "--max-drop", 3))
    assert result.exit_code == 1
    assert f"no bundle was written to {output}" in result.stderr
    best = tmp_path / "small.search/best"
    assert f"the best that was found is {best}" in result.stderr
    assert not output.exists()
    assert not Manifest.read(best).extra["compression"]["passed"]
    assert all(check.passed for check in verify(best))
    assert "candidates on the" in result.stdout


@pytest.mark.slow
def test_a_search_that_fails_after_its_first_bundle_keeps_that(
    run: Run, tuned: Path, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, levels = CandidateEvaluator.plan, []

    def fail_later(self: CandidateEvaluator, level: str, compute: Any) -> Any:
        levels.append(level)
        if len(levels) > 1:
            raise CompressionError("no space is left")
        return plan(self, level, compute)

    monkeypatch.setattr(CandidateEvaluator, "plan", fail_later)
    monkeypatch.setattr(CandidateEvaluator, "max_speedup", lambda self: 2.2)
    result = run(*arguments(tuned, files, tmp_path / "small", "--max-drop", 60))
    assert result.exit_code == 1
    assert "the search failed (no space is left); the best so far" in result.stderr
    best = tmp_path / "small.search/best"
    assert all(check.passed for check in verify(best))
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "expected --speedup, --max-drop or both"),
        (["--speedup", 0.5], 1, "expected a speed-up above 1, such as 2, found 0.5"),
        (["--speedup", 2, "--budget", "soon"], 2, "expected a duration such as 90s, 45m or 1.5h, found 'soon'"),
        (["--speedup", 2, "--budget", "5s"], 1, "expected a budget of at least 1m"),
        (["--speedup", 2, "--gate-share", 0.9], 1, "expected at least 500 rows, 50 in either part"),
        (["--speedup", 2, "--gate-share", 0.5, "--test", "t.csv"], 2, "expected one of --test and --gate-share"),
        (["--speedup", 2, "--lr", 0], 1, "lr must be positive, found 0.0"),
        (["--speedup", 2, "--batch-size", 0], 1, "batch_size must be at least 1, found 0"),
        (["--speedup", 2, "--plot", "p.gif"], 1, "expected a picture that ends in .png, .svg, .pdf"),
        (["--speedup", 2, "--plot", "missing/p.png"], 1, "expected a folder missing to write into"),
        (["--speedup", 2, "--train", "missing.csv"], 1, "missing.csv"),
    ],
)
def test_requests_that_make_no_sense_write_nothing(
    run: Run, tuned: Path, files: dict[str, Path], tmp_path: Path, options: list[object], code: int, message: str
) -> None:
    result = run(*arguments(tuned, files, tmp_path / "out", *options))
    assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_vocabulary_that_cannot_be_cut_is_refused_before_anything_is_trained(
    run: Run, tuned: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = shutil.copytree(tuned, tmp_path / "bpe")
    values = json.loads((checkpoint / "tokenizer.json").read_text())
    values["model"] = {"type": "BPE", "vocab": values["model"]["vocab"], "merges": [], "unk_token": "[UNK]"}
    (checkpoint / "tokenizer.json").write_text(json.dumps(values))
    result = run(*arguments(checkpoint, files, tmp_path / "out", "--speedup", 2, "--vocabulary", "cut"))
    assert result.exit_code == 1
    assert "expected a WordPiece or unigram tokenizer to cut the vocabulary of, found BPE" in result.stderr
    assert list(tmp_path.iterdir()) == [checkpoint]


def test_a_model_of_another_task_or_other_labels_is_refused(
    run: Run, tuned: Path, files: dict[str, Path], classifier_checkpoint: Path, toy_vocab: Path, tmp_path: Path
) -> None:
    result = run(*arguments(classifier_checkpoint, files, tmp_path / "out", "--speedup", 2))
    assert result.exit_code == 1
    assert "is not one of the model's 3 labels" in result.stderr
    occupied = tmp_path / "out.search"
    occupied.mkdir()
    (occupied / "notes.txt").write_text("mine")
    result = run(*arguments(tuned, files, tmp_path / "out", "--speedup", 2, "--force"))
    assert result.exit_code == 1
    assert "is not the folder of a search" in result.stderr
    assert (occupied / "notes.txt").read_text() == "mine"
    (tmp_path / "file.search").write_text("mine")
    result = run(*arguments(tuned, files, tmp_path / "file", "--speedup", 2, "--force"))
    assert (result.exit_code, "file.search: exists and is not the folder of a search" in result.stderr) == (1, True)


def test_the_current_directory_is_refused_as_output(
    run: Run, tuned: Path, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments(tuned, files, Path(), "--speedup", 2))
    assert (result.exit_code, "is or contains the current directory" in result.stderr) == (1, True)


def test_an_existing_output_is_kept(run: Run, tuned: Path, files: dict[str, Path], classifier_bundle: Path) -> None:
    result = run(*arguments(tuned, files, classifier_bundle, "--speedup", 2))
    assert result.exit_code == 1
    assert "a bundle is already there; replace it with --force" in result.stderr
