"""Length-sorted batches: complete, within the token budget, and with little padding."""

import random

import pytest

from bert_runtime.batching import length_sorted_batches, parallel_batches


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("budget", [1, 64, 256, 100_000])
def test_every_index_occurs_once_and_batches_keep_the_budget(seed: int, budget: int) -> None:
    generator = random.Random(seed)
    lengths = [generator.randint(1, 128) for _ in range(generator.randint(1, 200))]
    batches = list(length_sorted_batches(lengths, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget
    in_order = [lengths[i] for batch in batches for i in batch]
    assert in_order == sorted(lengths, reverse=True)


def test_batches_of_an_example() -> None:
    """Budget 12: one of 10 tokens, then 12 // 5 = 2 of at most 5, then 12 // 3 = 4 of at most 3."""
    assert list(length_sorted_batches([3, 5, 1, 10, 4, 2, 3], 12)) == [[3], [1, 4], [0, 6, 5, 2]]


def test_a_sequence_over_the_budget_is_a_batch_of_its_own() -> None:
    assert list(length_sorted_batches([100, 2, 100], 50)) == [[0], [2], [1]]


def test_equal_lengths_keep_their_order() -> None:
    assert list(length_sorted_batches([4] * 5, 8)) == [[0, 1], [2, 3], [4]]


def test_empty_input_and_empty_sequences() -> None:
    assert list(length_sorted_batches([], 10)) == []
    assert list(length_sorted_batches([0, 0], 10)) == [[0, 1]]


@pytest.mark.parametrize(
    ("lengths", "inter_threads", "sizes"),
    [
        ([16] * 8, 2, [4, 4]),
        ([16] * 8, 1, [8]),
        ([16] * 8, 16, [2, 2, 2, 2]),  # not below 32 tokens
        ([16] * 64, 2, [16, 16, 16, 16]),  # not above the budget
        ([8], 4, [1]),
        ([80, 10, 10], 1, [3]),  # one at a time: as without parallel batches
        ([80, 10, 10], 2, [1, 2]),
        ([], 4, []),
    ],
)
def test_batches_are_split_to_fill_parallel_sessions(lengths: list[int], inter_threads: int, sizes: list[int]) -> None:
    assert [len(batch) for batch in parallel_batches(lengths, 256, inter_threads)] == sizes
