"""transformers' masked language models and its collator with the signatures of ours, so that our loop trains them."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from bert_models.config import EncoderConfig
from bert_models.families import FAMILIES
from bert_models.pretraining import PretrainingBatch, PretrainingBatches
from bert_models.pretraining.masking import IGNORED
from bert_models.pretraining.model import Measured, PretrainingModel, decisions, sum_of_means
from bert_models.training.steps import seed_from_indices
from bert_runtime.tasks import FillMask

__all__ = ["CollatedBatches", "TransformersPretraining"]

_COLLATION = 2
"""Tells the random numbers of masks from those of the loop, whose places begin with 0 and 1."""


class TransformersPretraining(PretrainingModel):
    """The family's class for masked tokens, or for these with sentence pairs; new weights are transformers' own."""

    def __init__(self, config: EncoderConfig, *, pairs: bool, base: Path | None = None) -> None:
        """`base` is a folder to take the weights from."""
        super().__init__()
        self.config, self.pairs = config, pairs
        family = FAMILIES[config.family]
        name = family.pretraining_architecture if pairs else family.architectures[FillMask.name]
        assert name is not None
        architecture: Any = getattr(transformers, name)
        values = transformers.AutoConfig.for_model(**family.dump_config(config))
        self.model = architecture(values) if base is None else architecture.from_pretrained(base)

    def measure(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, labels: Tensor, sentence_labels: Tensor
    ) -> dict[str, Measured]:
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        chosen = labels != IGNORED
        tokens = outputs.prediction_logits if self.pairs else outputs.logits
        measured = decisions("mlm", tokens[chosen], labels[chosen])
        if self.pairs:
            measured |= decisions("sentence", outputs.seq_relationship_logits, sentence_labels)
        return measured

    def loss(self, measured: dict[str, Measured]) -> Tensor:
        return sum_of_means(measured, {"mlm_loss": 1.0, "sentence_loss": 1.0})

    def save(self, folder: Path, tokenizer_from: Path, max_tokens: int) -> None:
        self.model.save_pretrained(folder)


class CollatedBatches(PretrainingBatches):
    """The sequences of `PretrainingBatches` in the same order, masked by `DataCollatorForLanguageModeling`."""

    def __init__(self, tokenizer: Path, *arguments: Any, **options: Any) -> None:
        """`tokenizer` is the folder of its files; the rest goes to `PretrainingBatches`."""
        loaded = transformers.AutoTokenizer.from_pretrained(tokenizer)
        self.special = torch.tensor(loaded.all_special_ids)
        self.collator = transformers.DataCollatorForLanguageModeling(loaded)
        super().__init__(*arguments, **options)
        self.collator.mlm_probability = self.settings.masking.share

    def __getitem__(self, index: int) -> PretrainingBatch:
        batch = super().__getitem__(index)
        original = torch.where(batch.labels == IGNORED, batch.input_ids, batch.labels)
        rows = []
        for ids, types, mask in zip(original, batch.token_type_ids, batch.attention_mask.bool(), strict=True):
            special = torch.isin(ids[mask], self.special).long()
            row = {"input_ids": ids[mask], "token_type_ids": types[mask], "special_tokens_mask": special}
            rows.append({name: values.tolist() for name, values in row.items()})
        seed_from_indices(self.settings.seed, _COLLATION, self.epoch, index)
        made = self.collator(rows)
        return PretrainingBatch(
            made["input_ids"], made["attention_mask"], made["token_type_ids"], made["labels"], batch.sentence_labels
        )
