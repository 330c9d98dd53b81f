"""Random transformers models with every family's head for every task, and comparisons with ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from bert_models import Checkpoint, TaskModel, load_model, open_checkpoint, save_model
from bert_models.families import FAMILIES

from .toy import inputs, randomize
from .toy_families import CONFIGS, with_first_token

VOCABULARY = 211
"""Larger than the toy vocabulary, so that its tokenizer fits."""


BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


HEADS = [
    (name, task)
    for name, family in FAMILIES.items()
    for task in family.architectures
    if task not in ("sentence-embedding", "rerank", "feature-extraction")
]
"""Every family with every task that it has a head for. Embeddings, rerankers and token vectors have their own tests."""


FILL_MASK = [family for family, task in HEADS if task == "fill-mask"]


def reference(family: str, task: str, **changes: Any) -> Any:
    """Return a random transformers model of the family's class for a task."""
    _, config, sizes = CONFIGS[family]
    labels = {"num_labels": len(BIO)} if task in ("text-classification", "token-classification") else {}
    values = {**sizes, "vocab_size": VOCABULARY, **labels, **changes}
    model = getattr(transformers, FAMILIES[family].architectures[task])(config(**values)).eval()
    randomize(model)
    return model


Saved = Callable[..., tuple[Any, Checkpoint]]


def expected_output(theirs: Any, task: str, ids: Tensor, attention: Tensor, segments: Tensor | None) -> Tensor:
    """Compute the outputs of transformers in the shape of ours."""
    extra = {} if segments is None else {"token_type_ids": segments}
    outputs = theirs(input_ids=ids, attention_mask=attention, **extra)
    if task == "question-answering":
        return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
    if task == "sparse-embedding":  # Formal et al., arXiv:2109.10086, equation 6
        weights: Tensor = torch.log1p(torch.relu(outputs.logits)) * attention[..., None]
        return weights.amax(dim=1)
    found: Tensor = outputs["sop_logits" if "sop_logits" in outputs else "logits"]
    return found


def difference(ours: TaskModel, theirs: Any, batch: int = 3, mask: str = "random") -> float:
    """Return the maximum absolute difference at real tokens, or over all outputs if there is one per sequence."""
    ids, attention, segments = inputs(batch, mask, VOCABULARY)
    attention = with_first_token(ours.config.family, attention)
    with torch.no_grad():
        found = ours(ids, attention, segments)
        expected = expected_output(
            theirs, ours.task.name, ids, attention, segments if ours.config.uses_segment_ids else None
        )
    assert found.shape == expected.shape
    assert float(expected.std()) > 0.01  # constant outputs would prove little
    per_token = found.shape[:2] == ids.shape
    return float((found - expected)[attention.bool() if per_token else slice(None)].abs().max())


def save(model: TaskModel, folder: Path, tokenizer_from: Path) -> Path:
    folder.mkdir()
    save_model(model, folder, tokenizer_from=tokenizer_from)
    return folder


def assert_survives(ours: TaskModel, folder: Path) -> None:
    """Assert that the checkpoint in `folder` has the configuration, task and weights of the model that was saved."""
    again = open_checkpoint(folder)
    assert again.config == ours.config
    assert again.task() == ours.task
    found, expected = load_model(again, again.task()).state_dict(), ours.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
