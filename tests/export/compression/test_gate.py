"""The gate: the verdict on rows that the search never saw, and what is chosen when nothing passes."""

from pathlib import Path
from typing import Any

import pytest

from bert_export.compression.gate import choose, remember_gate
from bert_export.compression.goal import CompressionSettings, Goal
from bert_export.compression.halving import Trial
from bert_export.compression.journal import Journal
from bert_export.compression.result import pareto_rows
from bert_export.compression.search import Measured
from bert_models.errors import CompressionError

from .fake_evaluator import candidate


def measured(speedup: float, drop: float) -> Measured:
    return Measured(Trial(candidate(1), 0.9, f"{speedup}"), speedup, drop)


def judge_with(drops: dict[float, float], seen: list[float]) -> Any:
    def judge(found: Measured) -> dict[str, Any]:
        seen.append(found.speedup)
        drop = drops[found.speedup]
        interval = [drop - 1, drop + 1]
        return {
            "metric": "accuracy", "compressed": 0.9, "uncompressed": 0.91, "rows": 1000, "drop_percent": drop,
            "drop_percent_interval": interval, "attempts": len(seen),
        }  # fmt: skip

    return judge


def test_the_least_loss_among_the_fast_enough_is_chosen() -> None:
    seen: list[float] = []
    found = choose(
        Goal(speedup=2.0), [measured(1.9, 0.0), measured(2.5, 3.0), measured(2.1, 1.0)], judge_with({2.1: 1.5}, seen)
    )
    assert found is not None
    assert (found.measured.speedup, found.passed, seen) == (2.1, True, [2.1])
    assert "measured 2.10× as fast where 2× is asked" in found.reason
    assert found.reason.endswith("a loss of 1.50 % (95 % interval 0.50 to 2.50); no limit of the loss was asked for")


def test_with_a_limit_of_the_loss_the_gate_decides_too() -> None:
    bundles, goal = [measured(2.5, 3.0), measured(2.1, 1.0)], Goal(speedup=2.0, max_drop=1.0)
    assert str(goal) == "at least 2× as fast, with the least loss, of at most 1 %"
    for drop, passed in ((1.0, True), (1.5, False)):
        found = choose(goal, bundles, judge_with({2.1: drop}, []))
        assert found is not None
        assert (found.measured.speedup, found.passed) == (2.1, passed)
        assert found.reason.endswith("where 1 % is allowed")


def test_nothing_fast_enough_does_not_pass() -> None:
    bundles = [measured(1.5, 0.0), measured(1.8, 2.0), measured(1.9, 30.0)]
    found = choose(Goal(speedup=2.0), bundles, judge_with({1.8: 3.0}, []))
    assert found is not None
    assert (found.measured.speedup, found.passed) == (1.8, False)  # nearly as fast as the fastest, which lost much


def test_the_gate_is_tried_from_the_fastest_down_and_says_how_often() -> None:
    seen: list[float] = []
    drops = {4.0: 2.0, 3.0: 1.0, 2.0: 0.0}
    found = choose(Goal(max_drop=1.0), [measured(speed, 0.9) for speed in (2.0, 4.0, 3.0)], judge_with(drops, seen))
    assert found is not None
    assert (found.measured.speedup, found.passed, found.attempts, seen) == (3.0, True, 2, [4.0, 3.0])
    assert found.reason.endswith("measured 3.00× as fast; these rows have judged 1 other bundle before")


def test_bundles_that_an_interrupted_run_judged_count() -> None:
    found = choose(Goal(speedup=2.0), [measured(2.5, 3.0)], judge_with({2.5: 1.0}, [9.0, 8.0]))
    assert found is not None
    assert found.attempts == 3
    assert "these rows have judged 2 other bundles before" in found.reason


def test_a_remembered_verdict_counts_what_was_judged_after_it(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    first = remember_gate(Journal(path, {}), "a", lambda: {"drop_percent": 0.5})
    resumed = Journal(path, {})
    second = remember_gate(resumed, "b", lambda: {"drop_percent": 2.0})
    again = remember_gate(resumed, "a", dict)
    assert [gate["attempts"] for gate in (first, second, again)] == [1, 2, 2]
    assert again["drop_percent"] == 0.5


def test_a_failed_gate_names_the_least_loss() -> None:
    drops = {4.0: 5.0, 2.0: 2.0}
    found = choose(Goal(max_drop=1.0), [measured(4.0, 0.5), measured(2.0, 0.4)], judge_with(drops, []))
    assert found is not None
    assert (found.measured.speedup, found.passed, found.attempts) == (2.0, False, 2)


def test_without_a_candidate_within_the_limit_the_least_loss_is_judged_and_does_not_pass() -> None:
    found = choose(Goal(max_drop=1.0), [measured(4.0, 5.0), measured(2.0, 2.0)], judge_with({2.0: 0.5}, []))
    assert found is not None
    assert (found.measured.speedup, found.passed) == (2.0, False)
    assert choose(Goal(max_drop=1.0), [], judge_with({}, [])) is None


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({}, "expected a speed-up, a maximum drop or both"),
        ({"speedup": 0.5}, "expected a speed-up above 1, such as 2, found 0.5"),
        ({"speedup": float("nan")}, "expected a speed-up above 1"),
        ({"max_drop": -1.0}, "expected a maximum drop of 0 to 100 percent, found -1"),
    ],
)
def test_goals_that_make_no_sense_are_refused(goal: dict[str, float], message: str) -> None:
    with pytest.raises(CompressionError, match=message):
        Goal(**goal)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget_s": 5.0}, "expected a budget of at least 1m, found 5 seconds"),
        ({"gate_fraction": 1.0}, "expected a share of dev rows between 0 and 1, found 1"),
        ({"copies": -1}, "expected a number of copies of each training row, 0 or more, found -1"),
        ({"vocabulary": "none"}, "expected a vocabulary of keep or cut, found 'none'"),
        ({"max_tokens": 8, "fit_length": True}, "expected either max_tokens or fit_length"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CompressionError, match=message):
        CompressionSettings(**settings)


def test_the_pareto_front_has_what_nothing_faster_exceeds() -> None:
    rows = [{"speedup": s, "compressed": m} for s, m in [(1.5, 0.9), (3.0, 0.8), (2.0, 0.7), (2.0, 0.85)]]
    assert [(row["speedup"], row["compressed"], row["pareto"]) for row in pareto_rows(rows)] == [
        (3.0, 0.8, True), (2.0, 0.85, True), (2.0, 0.7, False), (1.5, 0.9, True),
    ]  # fmt: skip
