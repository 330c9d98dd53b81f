"""`bert-export train` without a dev file, and with dev rows whose labels no training row has."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bert_models.training.module import FineTuning

from .training_data import THINGS, equal, rows, write

Run = Callable[..., Result]


def without_dev(arguments: list[Any]) -> list[Any]:
    position = arguments.index("--dev")
    return [*arguments[:position], *arguments[position + 2 :]]


def read_report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "training.json").read_text())
    return report


def test_dev_set_is_held_out_of_the_training_file(run: Run, train_arguments: list[Any], tmp_path: Path) -> None:
    arguments = [*without_dev(train_arguments), "--epochs", 1]
    result = run(*arguments, "--output", tmp_path / "one")
    assert result.exit_code == 0, result.stderr
    train_file = train_arguments[train_arguments.index("--train") + 1]
    told = f"holding out 10 of 64 rows of {train_file} as dev set (stratified by label, seed 0)\n"
    assert told in result.stderr
    report = read_report(tmp_path / "one")
    assert report["examples"] == {"train": 54, "dev": 10}
    assert report["files"]["dev"] is None
    split = report["dev_split"]
    assert (split["rows"], split["of"], split["stratified"], split["seed"]) == (10, 64, True, 0)
    for name, options in (("same", []), ("seed", ["--seed", 1]), ("share", ["--dev-share", 0.25])):
        assert run(*arguments, *options, "--output", tmp_path / name).exit_code == 0
    assert equal(tmp_path / "one", tmp_path / "same")
    assert read_report(tmp_path / "same")["dev_split"] == split
    assert read_report(tmp_path / "seed")["dev_split"]["sha256 of the rows"] != split["sha256 of the rows"]
    assert read_report(tmp_path / "share")["examples"] == {"train": 48, "dev": 16}


def test_resumed_run_keeps_the_split(
    run: Run, train_arguments: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, output = without_dev(train_arguments), tmp_path / "parts"
    assert run(*arguments, "--output", tmp_path / "whole").exit_code == 0

    def interrupted(self: FineTuning, batch: Any, index: int) -> Any:
        if self.current_epoch == 1:
            raise KeyboardInterrupt
        return step(self, batch, index)

    step = FineTuning.training_step
    with monkeypatch.context() as patch:
        patch.setattr(FineTuning, "training_step", interrupted)
        assert run(*arguments, "--output", output).exit_code == 1
    for other, difference in (
        (train_arguments, "sha256 of the dev file was None"),
        ([*arguments, "--dev-share", 0.5], "dev_share was None, is now 0.5"),
    ):
        refused = run(*other, "--output", output, "--resume")
        assert refused.exit_code == 1
        assert difference in refused.stderr
    assert run(*arguments, "--output", output, "--resume").exit_code == 0
    assert equal(tmp_path / "whole", output)
    assert read_report(output)["dev_split"] == read_report(tmp_path / "whole")["dev_split"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dev-share", "0.2"], "expected a dev file or a dev_share (dev_fraction in Python), found both; drop one"),
        (["--dev-share", "1.5"], "dev_fraction must lie between 0 and 1, found 1.5"),
    ],
)
def test_invalid_shares_are_refused(
    run: Run, train_arguments: list[Any], tmp_path: Path, options: list[str], message: str
) -> None:
    result = run(*train_arguments, *options, "--output", tmp_path / "out")
    assert (result.exit_code, message in result.stderr) == (1, True)


def test_pairs_without_scores_need_no_dev_file(run: Run, train_arguments: list[Any], tmp_path: Path) -> None:
    """Those that are held out are ranked."""
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"text": f"a {i}", "text_pair": f"b {i}"}) + "\n" for i in range(20)))
    arguments = [*without_dev(train_arguments), "--task", "sentence-embedding", "--train", pairs]
    result = run(*arguments, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert read_report(tmp_path / "out")["metric"] == "ndcg_at_10"


def test_distill_holds_a_dev_set_out(run: Run, classifier_checkpoint: Path, tmp_path: Path) -> None:
    labels = ("greeting", "farewell", "question")
    train = write(tmp_path / "train.csv", [(f"hello {thing}", labels[i % 3]) for i, thing in enumerate(THINGS * 3)])
    result = run(
        "distill", "--teacher", classifier_checkpoint, "--student", 1, "--train", train, "--epochs", 1,
        "--precision", "fp32", "--dev-share", 0.3, "--output", tmp_path / "student",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert read_report(tmp_path / "student")["dev_split"]["rows"] == 9


@pytest.fixture
def dev_with_new_labels(tmp_path: Path) -> Path:
    """16 dev rows of known labels, and three of two labels that no training row has."""
    return write(tmp_path / "dev.csv", [*rows(THINGS[8:]), ("what", "new"), ("a", "newer"), ("day", "new")])


def test_rows_with_unknown_labels_are_told_and_not_scored(
    run: Run, train_arguments: list[Any], whole_run: tuple[Path, Result], tmp_path: Path, dev_with_new_labels: Path
) -> None:
    result = run(*train_arguments, "--dev", dev_with_new_labels, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert (
        f"warning: {dev_with_new_labels}: 3 of 19 rows have labels that nothing was learned of: "
        "'new' (2), 'newer' (1); they are not scored; --unknown-labels keep scores them"
    ) in result.stderr
    report = read_report(tmp_path / "out")
    expected = {"policy": "skip", "labels": {"new": 2, "newer": 1}, "rows": 3, "of": 19}
    assert report["unknown_labels"] == expected
    assert report["examples"]["dev"] == 16
    assert report["epochs"] == read_report(whole_run[0])["epochs"]
    assert "unknown_labels" not in read_report(whole_run[0])


def test_unknown_labels_may_be_kept_or_refused(
    run: Run, train_arguments: list[Any], whole_run: tuple[Path, Result], tmp_path: Path, dev_with_new_labels: Path
) -> None:
    arguments = [*train_arguments, "--dev", dev_with_new_labels, "--output", tmp_path / "out", "--unknown-labels"]
    refused = run(*arguments, "error")
    assert refused.exit_code == 1
    assert "does not have: 'new' (line 18), 'newer' (line 19); --unknown-labels skip leaves" in refused.stderr
    result = run(*arguments, "keep")
    assert result.exit_code == 0, result.stderr
    assert "3 of 19 rows have labels that nothing was learned of" in result.stderr
    report = read_report(tmp_path / "out")
    assert report["task"]["labels"] == ["lost", "money", "new", "newer"]
    assert report["examples"]["dev"] == 19
    assert report["best"]["accuracy"] <= 16 / 19
    assert report["unknown_labels"]["policy"] == "keep"


@pytest.mark.parametrize("policy", ["skip", "keep"])
def test_tag_that_only_dev_has(run: Run, train_arguments: list[Any], tmp_path: Path, policy: str) -> None:
    train, dev = tmp_path / "train.conll", tmp_path / "dev.conll"
    train.write_text("\n".join(f"my O\n{thing} B-thing\n" for thing in THINGS))
    dev.write_text("my O\ncard B-thing\n\nhello B-greeting\n\nhello B-greeting\nyou I-greeting\n")
    result = run(
        *train_arguments, "--task", "token-classification", "--train", train, "--dev", dev, "--epochs", 1,
        "--output", tmp_path / "out", "--unknown-labels", policy,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "2 of 3 rows have labels that nothing was learned of: 'B-greeting' (2), 'I-greeting' (1)" in result.stderr
    assert read_report(tmp_path / "out")["examples"]["dev"] == (1 if policy == "skip" else 3)


def test_students_keep_the_labels_of_their_teacher(run: Run, classifier_checkpoint: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "data.csv", [("hello", "greeting"), ("bye", "farewell")])
    arguments = ["distill", "--teacher", classifier_checkpoint, "--student", 1, "--train", data, "--dev", data]
    result = run(*arguments, "--output", tmp_path / "out", "--unknown-labels", "keep")
    assert result.exit_code == 1
    assert "unknown_labels must be skip or error" in result.stderr
