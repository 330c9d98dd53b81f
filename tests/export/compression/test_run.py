"""A search that cannot succeed says so before anything is trained."""

from types import SimpleNamespace
from typing import Any

import pytest

from bert_export.compression.goal import Goal
from bert_export.compression.run import _search
from bert_models.errors import CompressionError


@pytest.mark.parametrize(
    ("goal", "fastest", "message"),
    [
        (Goal(speedup=50.0), 6.0, r"50× cannot be reached: the fastest candidate is predicted to be 6.00× as fast"),
        (Goal(max_drop=1.0), 1.1, r"nothing to gain: the fastest candidate is predicted to be 1.10× as fast"),
    ],
)
def test_a_speed_that_no_candidate_has_is_refused(goal: Goal, fastest: float, message: str) -> None:
    evaluator: Any = SimpleNamespace(max_speedup=lambda: fastest, pool=lambda speedup: [])
    with pytest.raises(CompressionError, match=message):
        _search(goal, evaluator)
