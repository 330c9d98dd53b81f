"""Statistics of timings, on numbers that can be checked by hand."""

import pytest

from bert_bench.timing_statistics import NOISY_SPREAD, Timing, calls_per_burst, paired_speedup, summarize


def timing(*round_medians_ms: float) -> Timing:
    return summarize([[median] for median in round_medians_ms])


def test_percentiles_are_over_the_pooled_samples_of_all_rounds() -> None:
    found = summarize([[float(i) for i in range(51)], [float(i) for i in range(51, 101)]])
    assert (found.samples, found.p50_ms, found.p90_ms, found.p99_ms) == (101, 50.0, 90.0, 99.0)


def test_percentiles_interpolate() -> None:
    assert summarize([[1.0, 2.0], [3.0, 4.0]]).p50_ms == 2.5


def test_each_round_keeps_its_median() -> None:
    assert summarize([[3.0, 1.0, 2.0], [10.0, 20.0], [7.0]]).round_medians_ms == (2.0, 15.0, 7.0)


def test_one_sample_is_every_percentile() -> None:
    found = summarize([[4.0]])
    assert (found.samples, found.p50_ms, found.p90_ms, found.p99_ms) == (1, 4.0, 4.0, 4.0)


def test_slow_round_cancels_in_the_speedup() -> None:
    engine, baseline = timing(1.0, 5.0, 1.0), timing(2.0, 10.0, 2.0)
    found = paired_speedup(engine, baseline)
    assert (found.p10, found.median, found.p90, found.noisy) == (2.0, 2.0, 2.0, False)


def test_ratios_are_taken_round_by_round() -> None:
    found = paired_speedup(timing(1.0, 1.0, 1.0), timing(1.0, 2.0, 3.0))
    assert found.median == 2.0
    assert found.p10 == pytest.approx(1.2)
    assert found.p90 == pytest.approx(2.8)
    assert found.noisy


@pytest.mark.parametrize(("spread", "noisy"), [(NOISY_SPREAD - 0.01, False), (NOISY_SPREAD + 0.01, True)])
def test_speedup_is_noisy_above_the_spread(spread: float, noisy: bool) -> None:
    baseline = timing(*[1.0] * 3, *[spread] * 3)  # half of the rounds each, so p10 and p90 are the two values
    assert paired_speedup(timing(*[1.0] * 6), baseline).noisy is noisy


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_fewer_than_three_rounds_are_noisy(rounds: int) -> None:
    assert paired_speedup(timing(*[1.0] * rounds), timing(*[2.0] * rounds)).noisy is (rounds < 3)


def test_speedup_over_itself_is_one() -> None:
    found = paired_speedup(timing(1.0, 3.0, 2.0), timing(1.0, 3.0, 2.0))
    assert (found.median, found.noisy) == (1.0, False)


@pytest.mark.parametrize(
    ("call_ms", "calls"), [(1.0, 60), (0.7, 86), (59.0, 1), (60.0, 1), (1000.0, 1), (0.0, 1000), (0.001, 1000)]
)
def test_calls_fill_a_burst_from_one_to_the_maximum(call_ms: float, calls: int) -> None:
    assert calls_per_burst(call_ms, burst_ms=60.0) == calls
