"""How a search divides its budget."""

from dataclasses import replace

import pytest

from bert_export.compression.planning import (
    Rung,
    TrainingRows,
    first_rung,
    plan_last_rung,
    plan_narrowed_rung,
    plan_rungs,
)


def rows(given: int = 100, copies: int = 0, *, copy_work: float = 1.0, answer_s: float = 0.0) -> TrainingRows:
    return TrainingRows(
        num_given=given, num_copies=copies, copy_work=copy_work, num_answered=given, answer_s=answer_s
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "budget_s", "given", "copies", "expected"),
    [
        (9, 100.0, 100, 0, [Rung(9, 1, 100), Rung(3, 2, 100), Rung(1, 30, 100)]),
        (30, 100.0, 100, 0, [Rung(9, 1, 100), Rung(3, 2, 100), Rung(1, 30, 100)]),
        (9, 19.0, 100, 0, [Rung(5, 1, 100), Rung(2, 2, 100), Rung(1, 10, 100)]),
        (9, 8.0, 100, 0, [Rung(3, 1, 100), Rung(1, 5, 100)]),
        (3, 6.5, 100, 0, [Rung(3, 1, 100), Rung(1, 3, 100)]),
        (9, 1.2, 100, 0, [Rung(1, 1, 100)]),
        (9, 0.0, 100, 0, [Rung(1, 1, 100)]),
        (1, 3.5, 100, 0, [Rung(1, 1, 100), Rung(1, 2, 100)]),
        (9, 31.0, 100, 900, [Rung(9, 1, 100), Rung(3, 2, 100), Rung(1, 4, 400)]),
        (9, 75.0, 100, 900, [Rung(9, 1, 100), Rung(3, 2, 100), Rung(1, 6, 1000)]),
        (9, 22.0, 100, 900, [Rung(6, 1, 100), Rung(2, 2, 100), Rung(1, 4, 300)]),
        (9, 4800.0, 40_000, 0, [Rung(9, 1, 16_000), Rung(3, 2, 16_000), Rung(1, 6, 40_000)]),
        (9, 5600.0, 400_000, 0, [Rung(9, 1, 16_000), Rung(3, 2, 16_000), Rung(1, 1, 320_000)]),
    ],
)
def test_a_budget_is_divided_into_rungs(
    number: int, budget_s: float, given: int, copies: int, expected: list[Rung]
) -> None:
    found = plan_rungs(number, 0.01, budget_s, rows(given, copies))
    spent = [0.01 * rung.num_candidates * rung.epochs * rung.num_rows for rung in found]
    assert sum(spent) <= budget_s or len(found) == 1
    assert len(found) == 1 or spent[-1] >= sum(spent) / 2
    assert found == expected


def test_few_copies_are_not_worth_the_labels() -> None:
    assert plan_last_rung(0.01, 7.9, rows(100, 900)) == Rung(1, 7, 100)
    assert plan_last_rung(0.01, 8.1, rows(100, 900)) == Rung(1, 4, 202)
    assert plan_last_rung(0.01, 7.9, rows(100, 50)) == Rung(1, 5, 150)  # all that there are


def test_longer_copies_take_longer() -> None:
    found = plan_last_rung(0.01, 20.0, rows(100, 900, copy_work=2.0))
    assert found == Rung(1, 4, 300)
    assert rows(100, 900, copy_work=2.0).work(found.num_rows) == 500


def test_the_time_that_rows_are_answered_in_is_counted() -> None:
    slow = rows(100, 900, answer_s=0.04)
    assert plan_last_rung(0.01, 20.0, slow) == Rung(1, 4, 300)  # 200 copies: 8 s, and 4 epochs of 3 s
    assert slow.answers_s(300) == pytest.approx(8.0)
    fewer = replace(slow, num_answered=50)  # the last 50 given ones: 2 s
    assert plan_last_rung(0.01, 22.0, fewer) == Rung(1, 4, 300)
    assert slow.answers_s(50) == 0.0


def test_an_epoch_of_too_many_rows_is_one_of_the_first() -> None:
    assert plan_last_rung(0.01, 50.0, rows(1_000_000)) == Rung(1, 1, 16_000)
    assert plan_last_rung(0.01, 500.0, rows(1_000_000)) == Rung(1, 1, 50_000)


def test_narrowing_exceeds_the_budget_by_a_tenth_at_most() -> None:
    more = TrainingRows(num_given=100, num_copies=900, num_answered=400)
    assert plan_narrowed_rung(0.01, 4.0, 100.0, more) == Rung(1, 1, 400)
    assert plan_narrowed_rung(0.01, 3.9, 100.0, more) == Rung(1, 1, 100)
    assert plan_narrowed_rung(0.01, -8.9, 100.0, more) == first_rung(more)
    assert plan_narrowed_rung(0.01, -9.1, 100.0, more) is None
