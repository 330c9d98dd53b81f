"""The table of what is supported: every family and task once, and what a family lacks."""

import pytest

from bert_export.support import support_table
from bert_models import FAMILIES
from bert_runtime.tasks import TASKS


def test_names_every_task_once() -> None:
    table = support_table()
    assert all(table.count(f"`{task}`") == 1 for task in TASKS)


@pytest.mark.parametrize(
    "expected",
    [
        "| `question-answering` | all but `nomic_bert`, `gte` |",
        "| `replaced-token-detection` | `electra` |",
        "`cpu` (`fp32`, `int8`, `bf16`): all;",
        "`cuda` and `tensorrt` (`fp32`, `fp16`): all but `modernbert`, `deberta-v2`, `nomic_bert`, `gte`.",
    ],
)
def test_says_which_families_each_has(expected: str) -> None:
    assert expected in support_table()


def test_lists_the_families() -> None:
    assert all(f"`{family}`" in support_table().splitlines()[0] for family in FAMILIES)
