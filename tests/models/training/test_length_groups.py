"""Queries and documents of a batch are computed apart, and the outputs are those of the whole batch."""

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from bert_models import load_model, open_checkpoint
from bert_models.training import TrainSettings
from bert_models.training.data import ExampleDataset
from bert_models.training.length_groups import length_groups
from bert_models.training.module import FineTuning
from bert_models.training.similarity import similarity_examples
from bert_runtime.records import Record


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ([5], [[0]]),
        ([9, 9, 9], [[0, 1, 2]]),
        ([4, 40, 44, 6, 38, 41], [[0, 3], [1, 2, 4, 5]]),
        ([40, 41, 44, 36], [[0, 1, 2, 3]]),  # 4 % of the padding
        ([4, 100], [[0], [1]]),
    ],
)
def test_groups_are_made_where_they_save_padding(lengths: list[int], groups: list[list[int]]) -> None:
    assert length_groups(lengths) == groups


def test_outputs_are_those_of_the_whole_batch(embedding_checkpoint: Path) -> None:
    checkpoint = open_checkpoint(embedding_checkpoint)
    task = checkpoint.task()
    rows = [
        {"query": f"my card {number}", "positive": "the bank is open " * (6 + number), "negative": ["it rains " * 8]}
        for number in range(4)
    ]
    records = [Record(row, Path("x.jsonl"), number) for number, row in enumerate(rows)]
    examples = ExampleDataset(task, similarity_examples(task, records), checkpoint.text_tokenizer())
    module = FineTuning(load_model(checkpoint, task), examples, TrainSettings(), "fp32")
    batch = examples.collate(range(len(examples)))
    whole = module.model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    forward = module.model.forward
    module.model.forward = Mock(side_effect=forward)  # type: ignore[method-assign]
    found = module._outputs(batch)
    widths = [call.args[0].shape for call in module.model.forward.call_args_list]
    assert len(widths) == 2
    assert sum(rows for rows, _ in widths) == 12
    assert widths[0][1] < 10 < widths[1][1]
    torch.testing.assert_close(found, whole)
    module.model.forward.reset_mock()
    module._outputs(batch._replace(targets=torch.zeros(12)))  # texts of their own, as in distillation
    assert module.model.forward.call_count == 1
    module.process_group = Mock(is_sharded=True)
    module._outputs(batch)
    assert module.model.forward.call_count == 2
