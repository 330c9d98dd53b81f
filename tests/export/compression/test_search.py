"""The search, with an evaluator that trains nothing."""

from dataclasses import replace

import pytest

from bert_export.compression.candidates import (
    Candidate,
    Shape,
    candidates_of_shape,
    feed_forward_widths,
    narrower_widths,
    widest_fast_enough,
)
from bert_export.compression.halving import Trial, halve, trial_after
from bert_export.compression.latency_table import LatencyTable, corner_shapes, kept_share
from bert_export.compression.planning import Rung
from bert_export.compression.search import Measured, fastest_within_drop, speed_ladder, within_speed

from .fake_evaluator import FakeEvaluator, candidate


def test_the_subsets_of_a_depth_are_the_spread_the_first_and_the_influential_layers() -> None:
    found = candidates_of_shape([0.5, 0.1, 0.2, 0.3, 0.4, 0.6], Shape(3, 1536))
    assert [item.layers for item in found] == [(0, 2, 5), (0, 1, 2), (0, 4, 5)]
    assert found[1].name == "layers-0-1-2-width-1536"
    (whole,) = candidates_of_shape([0.1, 0.2], Shape(2, 64, 50))
    assert (whole.name, str(whole.shape.token_pruning)) == ("layers-0-1-width-64-tokens-50", "1:0.5")
    assert whole.layers == (0, 1)
    assert [item.layers for item in candidates_of_shape([0.1, 0.2, 0.3], Shape(1, 64))] == [(0,), (2,)]


def test_widths_are_multiples_of_64() -> None:
    assert feed_forward_widths(1536) == list(range(1536, 383, -64))
    assert feed_forward_widths(64) == [64]
    assert feed_forward_widths(100) == [100, 64]
    assert narrower_widths(512) == [448, 384]
    assert narrower_widths(100) == []
    assert narrower_widths(64) == []


def test_shapes_that_others_exceed_are_left_out() -> None:
    speeds = {Shape(depth, width): 24 / depth / (1 + width / 64) for depth in (1, 2, 3, 4) for width in (64, 128, 256)}
    assert widest_fast_enough(speeds, 2.0) == [Shape(4, 128), Shape(2, 256)]
    assert widest_fast_enough(speeds, 100.0) == []


def test_what_prunes_tokens_may_be_larger_and_not_smaller() -> None:
    speeds = {Shape(4, 64): 2.0, Shape(4, 128): 1.0, Shape(4, 64, 50): 3.0, Shape(4, 128, 50): 2.0, Shape(2, 64): 4.0}
    assert widest_fast_enough(speeds, 2.0) == [Shape(4, 64), Shape(4, 128, 50)]


def test_the_latency_table_interpolates_what_it_has_not_measured() -> None:
    def time(shape: Shape) -> float:
        return 0.1 + shape.num_layers * (0.05 + shape.intermediate_size * 1e-4)

    corners = corner_shapes(6, [1536, 768, 384])
    assert corners == [Shape(6, 1536), Shape(6, 384), Shape(2, 1536), Shape(2, 384)]
    table = LatencyTable({shape: time(shape) for shape in corners})
    assert table.predict_ms(Shape(3, 768)) == pytest.approx(time(Shape(3, 768)))
    assert LatencyTable.from_json(table.to_json()).predict_ms(Shape(4, 512)) == pytest.approx(time(Shape(4, 512)))
    assert corner_shapes(2, [64]) == [Shape(2, 64), Shape(1, 64)]


def test_a_newer_measurement_counts_for_shapes_of_as_many_layers() -> None:
    full, corner = Shape(6, 1536), Shape(2, 1536)
    times = {full: 1.0, Shape(6, 384): 0.7, corner: 0.4, Shape(2, 384): 0.3}
    table = LatencyTable(times).extended({full: 2.0, Shape(3, 768): 0.9, corner: 0.84}, full)
    assert table.predict_ms(corner) == pytest.approx(0.42)  # twice as slow a machine
    assert table.predict_ms(Shape(3, 768)) == pytest.approx(0.45)
    ratio = table.fitted_ms(Shape(3, 704)) / table.fitted_ms(Shape(3, 768))
    assert table.predict_ms(Shape(3, 704)) == pytest.approx(0.45 * ratio)
    assert table.predict_ms(Shape(4, 704)) == table.fitted_ms(Shape(4, 704))


def test_the_latency_table_knows_that_pruned_layers_see_fewer_tokens() -> None:
    lengths = [1000, 2000]  # no text keeps more tokens than the share says

    def time(shape: Shape) -> float:  # layers 1 to 6: tokens leave after the attention of 2 and 4
        pruned = 1 + (0.25 + 0.75 * 0.3) + 0.3 + (0.25 * 0.3 + 0.75 * 0.09) + 0.09 + 0.09
        work = shape.num_layers if shape.kept_percent == 100 else pruned
        return 0.1 + 0.02 * shape.num_layers + work * (0.1 + shape.intermediate_size * 1e-4)

    corners = corner_shapes(6, [1536, 384], [100, 30])
    assert corners[4:] == [Shape(6, 1536, 30), Shape(6, 384, 30)]
    table = LatencyTable({shape: time(shape) for shape in corners}, lengths)
    assert table.predict_ms(Shape(6, 768, 30)) == pytest.approx(time(Shape(6, 768, 30)))
    assert table.predict_ms(Shape(3, 768)) == pytest.approx(time(Shape(3, 768)))
    again = LatencyTable.from_json(table.to_json(), lengths)
    assert again.predict_ms(Shape(5, 768, 50)) == pytest.approx(table.predict_ms(Shape(5, 768, 50)))
    assert kept_share([16, 100], 50) == pytest.approx((16 + 50) / 116)


def test_halving_trains_the_best_for_longer_from_where_they_were() -> None:
    quality = {candidate(layers): layers / 10 for layers in (1, 2, 3, 4)}
    calls: list[tuple[int, int, str | None]] = []

    def train(item: Candidate, rung: Rung, before: Trial | None) -> Trial | None:
        calls.append((len(item.layers), rung.epochs, before and before.checkpoint))
        return Trial(item, quality[item], f"{len(item.layers)}-{rung.epochs}")

    found = halve(
        [candidate(1), candidate(4), candidate(2), candidate(3)], [Rung(4, 1, 9), Rung(2, 2, 9), Rung(1, 5, 9)], train
    )
    assert calls == [
        (1, 1, None), (4, 1, None), (2, 1, None), (3, 1, None), (4, 2, "4-1"), (3, 2, "3-1"), (4, 5, "4-2"),
    ]  # fmt: skip
    assert [trial.checkpoint for trial in found] == ["4-5", "3-2", "2-1", "1-1"]


def test_what_is_too_slow_is_narrowed_before_the_last_training() -> None:
    evaluator = FakeEvaluator(fits=lambda trained: candidate(len(trained.layers), 32))
    (found,) = within_speed(evaluator, 2.0)
    assert (found.trial.candidate, found.speedup) == (candidate(4, 32), 2.0)
    assert evaluator.log == [(candidate(n).name, 1) for n in (4, 3, 2)] + [(candidate(4, 32).name, 30)]


@pytest.mark.parametrize(("fitting", "trained"), [((3, 2), 3), ((2,), 2), ((), 4)])
def test_what_cannot_be_fast_enough_is_not_trained_for_long(fitting: tuple[int, ...], trained: int) -> None:
    evaluator = FakeEvaluator(fits=lambda found: found if len(found.layers) in fitting else None)
    within_speed(evaluator, 2.0)
    assert evaluator.log[-1] == (candidate(trained).name, 30)


def test_the_last_training_uses_the_time_that_is_left_once_the_time_of_an_epoch_is_known() -> None:
    evaluator = FakeEvaluator(budget_s=20.0)

    def train_slowly(level: str, item: Candidate, rung: Rung, before: Trial | None) -> Trial | None:
        evaluator.budget_s = 9.5
        return FakeEvaluator.train(evaluator, level, item, rung, before)

    evaluator.train = train_slowly  # type: ignore[method-assign] # an epoch takes longer than its estimate
    within_speed(evaluator, 2.0)
    assert [epochs for _, epochs in evaluator.log] == [1, 1, 1, 9]


def test_halving_goes_on_without_candidates_that_failed() -> None:
    def train(item: Candidate, rung: Rung, before: Trial | None) -> Trial | None:
        return None if len(item.layers) == 2 else Trial(item, 0.5, "x")

    found = halve([candidate(2), candidate(1)], [Rung(2, 1, 9), Rung(1, 5, 9)], train)
    assert [trial.candidate for trial in found] == [candidate(1)]
    assert halve([candidate(2)], [Rung(1, 1, 9), Rung(1, 5, 9)], train) == []


def test_the_best_candidate_of_the_speed_that_is_asked_for_is_chosen() -> None:
    evaluator = FakeEvaluator()
    found = within_speed(evaluator, 2.0)
    assert [item.trial.candidate for item in found] == [candidate(4)]
    assert evaluator.log == [(candidate(n).name, 1) for n in (4, 3, 2)] + [(candidate(4).name, 30)]


def test_a_bundle_that_is_slower_than_predicted_is_replaced_by_the_next() -> None:
    evaluator = FakeEvaluator(measured_speed=lambda predicted: predicted * 0.9)
    found = within_speed(evaluator, 2.0)
    assert [round(item.speedup, 2) for item in found] == [1.8, 2.4]


def test_a_bundle_that_is_a_little_too_slow_is_narrowed() -> None:
    evaluator = FakeEvaluator(measured_speed=lambda predicted: predicted * 0.98, narrows=True)
    found = within_speed(evaluator, 2.0)
    assert [(round(item.speedup, 2), item.trial.candidate.intermediate_size) for item in found] == [(1.96, 64), (2, 32)]
    assert evaluator.log[-1] == (candidate(4, 32).name, 1)


def test_what_loses_too_much_by_narrowing_does_not_end_the_level() -> None:
    evaluator = FakeEvaluator(measured_speed=lambda predicted: predicted * 0.98, narrows=True)

    def train(level: str, item: Candidate, rung: Rung, before: Trial | None) -> Trial | None:
        trial = FakeEvaluator.train(evaluator, level, item, rung, before)
        return trial and replace(trial, metric=0.1 if item.intermediate_size < 64 else trial.metric)

    evaluator.train = train  # type: ignore[method-assign]
    found = within_speed(evaluator, 2.0)
    assert [len(item.trial.candidate.layers) for item in found] == [4, 4, 3]


def test_a_candidate_that_cannot_be_exported_is_replaced_by_the_next() -> None:
    evaluator = FakeEvaluator(broken=[candidate(4)])
    assert [item.trial.candidate for item in within_speed(evaluator, 2.0)] == [candidate(3)]


def test_a_speed_out_of_reach_trains_nothing() -> None:
    evaluator = FakeEvaluator()
    assert within_speed(evaluator, 9.0) == []
    assert evaluator.log == []


def test_bisection_finds_the_fastest_within_the_limit() -> None:
    ladder = speed_ladder(8.0)
    assert (ladder[0], ladder[-1]) == (1.25, 8.0)
    for limit in (0.5, 1.1, 3.5, 100.0):
        evaluator = FakeEvaluator()
        found = fastest_within_drop(evaluator, ladder, limit)
        passing = [item.speedup for item in found if item.drop_percent <= limit]
        possible = [8 / layers for layers in range(1, 8) if 8 / layers - 1 <= limit]
        assert max(passing, default=None) == max(possible, default=None)
        assert len(evaluator.levels) <= 4
    assert all(item.drop_percent > 0.2 for item in fastest_within_drop(FakeEvaluator(), ladder, 0.2))


def test_bisection_counts_a_narrowed_bundle_after_which_another_was_tried() -> None:
    evaluator = FakeEvaluator(
        drop_of=lambda speedup: {2.0: 0.2, 8 / 3: 0.8, 4.0: 0.9}.get(speedup, 5.0), narrows=True, max_speed=4.0
    )
    narrowed = evaluator.narrow

    def narrow(level: str, found: Measured, speedup: float) -> Trial | None:
        trial = narrowed(level, found, speedup)
        return trial and replace(trial, metric=0.1)  # so that the next candidate is tried

    evaluator.narrow = narrow  # type: ignore[method-assign]
    evaluator.measured_speed = lambda predicted: predicted * 0.98
    found = fastest_within_drop(evaluator, [2.0, 2.5, 4.0], 1.0)
    assert max(item.speedup for item in found if item.drop_percent <= 1.0) == 4.0


def test_no_level_but_the_first_is_begun_when_the_time_is_over() -> None:
    evaluator = FakeEvaluator(budget_s=0.0)
    assert len(fastest_within_drop(evaluator, speed_ladder(8.0), 100.0)) == 1
    assert evaluator.log == [(candidate(3).name, 1)]


def test_a_level_whose_candidates_all_fail_is_like_one_that_loses_too_much() -> None:
    evaluator = FakeEvaluator(failing=[candidate(layers) for layers in (1, 2, 3)])
    found = fastest_within_drop(evaluator, [2.0, 4.0], 50.0)
    assert [item.speedup for item in found] == [2.0]


def test_a_trial_knows_what_it_learnt_from_and_how_wide_it_was() -> None:
    wide, narrow = candidate(2, width=512), candidate(2, width=384)
    first = trial_after(None, wide, 0.8, "cut-then-1", 10)
    second = trial_after(first, wide, 0.9, "cut-then-1-then-5", 40)
    third = trial_after(second, narrow, 0.85, "narrowed-then-1", 10)
    assert [(item.num_rows, item.narrowed_from) for item in (first, second, third)] == [
        (10, None), (40, None), (40, 512),
    ]  # fmt: skip
    assert trial_after(first, wide, 0.8, "cut-then-1", 40) == first  # more epochs were worse
