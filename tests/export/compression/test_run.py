"""A search that cannot succeed says so before anything is trained, and harms nothing."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_export.compression import Goal, compress
from bert_export.compression.run import _finish, _search
from bert_models.errors import CompressionError
from bert_runtime.bundle.folder_lock import exclusive


@pytest.mark.parametrize(
    ("goal", "fastest", "message"),
    [
        (Goal(speedup=50.0), 6.0, r"50× cannot be reached: the fastest candidate is predicted to be 6.00× as fast"),
        (Goal(max_drop=1.0), 1.1, r"nothing to gain: the fastest candidate is predicted to be 1.10× as fast"),
    ],
)
def test_a_speed_that_no_candidate_has_is_refused(goal: Goal, fastest: float, message: str) -> None:
    ended: list[int] = []
    evaluator: Any = SimpleNamespace(
        max_speedup=lambda: fastest, pool=lambda speedup: [], journal=SimpleNamespace(finish=lambda: ended.append(1))
    )
    with pytest.raises(CompressionError, match=message):
        _search(goal, evaluator)
    assert ended


def test_a_search_without_a_training_says_that_nothing_was_fast_enough() -> None:
    request: Any = SimpleNamespace(goal=Goal(max_drop=1.0), folder=Path("small.search"))
    evaluator: Any = SimpleNamespace(journal=SimpleNamespace(count=lambda prefix: 0, finish=lambda: None), trials=[])
    source: Any = None
    with pytest.raises(CompressionError, match="no candidate is fast enough: those that were predicted to be were not"):
        _finish(request, evaluator, [], source, "")


def test_a_checkpoint_in_the_folder_that_force_empties_is_refused(
    classifier_checkpoint: Path, labelled: Path, train_file: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "small.search" / "checkpoints" / "best"
    shutil.copytree(classifier_checkpoint, checkpoint)
    (tmp_path / "small.search" / "candidates.jsonl").touch()
    with pytest.raises(CompressionError, match=r"best: is in .*small\.search, which this search writes; move it"):
        compress(checkpoint, tmp_path / "small", train_file, labelled, Goal(speedup=2.0), force=True)
    assert (checkpoint / "config.json").is_file()


def test_a_second_process_does_not_search_in_the_same_folder(
    classifier_checkpoint: Path, labelled: Path, train_file: Path, tmp_path: Path
) -> None:
    (folder := tmp_path / "small.search").mkdir()
    (folder / "candidates.jsonl").touch()
    with (
        exclusive(folder, AssertionError()),  # type: ignore[arg-type] # never raised
        pytest.raises(CompressionError, match=r"small\.search: another process is searching in this folder; wait"),
    ):
        compress(classifier_checkpoint, tmp_path / "small", train_file, labelled, Goal(speedup=2.0), force=True)
    assert (folder / "candidates.jsonl").is_file()
