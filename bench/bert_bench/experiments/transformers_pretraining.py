"""transformers' pre-training models and masking collator, behind the interfaces of bert_models' pre-training loop."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from bert_models.config import EncoderConfig
from bert_models.crf import IGNORE_INDEX
from bert_models.families import FAMILIES
from bert_models.pretraining import PretrainingBatch, PretrainingBatches
from bert_models.pretraining.model import MetricSum, PretrainingModel, classification_metrics, weighted_loss
from bert_models.training.seeding import seed_from_indices
from bert_runtime.tasks import FillMask

__all__ = ["CollatedBatches", "TransformersPretraining"]

_COLLATOR_SEED = 2
"""First index of the collator's seeds. The training loop's own seeds start with 0 and 1."""


class TransformersPretraining(PretrainingModel):
    """transformers' class of a family for masked language modelling, with or without sentence pairs.

    Args:
        config: configuration of the encoder.
        pairs: whether the model decides sentence pairs as well (`BertForPreTraining` and the like).
        base: checkpoint folder to take the weights from. If `None`, transformers initializes new ones.

    """

    def __init__(self, config: EncoderConfig, *, pairs: bool, base: Path | None = None) -> None:
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
    ) -> dict[str, MetricSum]:
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        masked = labels != IGNORE_INDEX
        logits = outputs.prediction_logits if self.pairs else outputs.logits
        measured = classification_metrics("mlm", logits[masked], labels[masked])
        if self.pairs:
            measured |= classification_metrics("sentence", outputs.seq_relationship_logits, sentence_labels)
        return measured

    def loss(self, measured: dict[str, MetricSum]) -> Tensor:
        return weighted_loss(measured, {"mlm_loss": 1.0, "sentence_loss": 1.0})

    def save(self, folder: Path, tokenizer_from: Path, max_tokens: int) -> None:
        self.model.save_pretrained(folder)


class CollatedBatches(PretrainingBatches):
    """The sequences of `PretrainingBatches` in the same order, masked by `DataCollatorForLanguageModeling`.

    Args:
        tokenizer: folder of the tokenizer files.
        *arguments: passed to `PretrainingBatches`.
        **options: passed to `PretrainingBatches`.

    """

    def __init__(self, tokenizer: Path, *arguments: Any, **options: Any) -> None:
        loaded = transformers.AutoTokenizer.from_pretrained(tokenizer)
        self.special = torch.tensor(loaded.all_special_ids)
        self.collator = transformers.DataCollatorForLanguageModeling(loaded)
        super().__init__(*arguments, **options)
        self.collator.mlm_probability = self.settings.masking.mlm_probability

    def __getitem__(self, index: int) -> PretrainingBatch:
        batch = super().__getitem__(index)
        original_ids = torch.where(batch.labels == IGNORE_INDEX, batch.input_ids, batch.labels)
        sequences = []
        for ids, types, mask in zip(original_ids, batch.token_type_ids, batch.attention_mask.bool(), strict=True):
            special = torch.isin(ids[mask], self.special).long()
            sequence = {"input_ids": ids[mask], "token_type_ids": types[mask], "special_tokens_mask": special}
            sequences.append({name: values.tolist() for name, values in sequence.items()})
        seed_from_indices(self.settings.seed, _COLLATOR_SEED, self.epoch, index)
        collated = self.collator(sequences)
        return PretrainingBatch(
            collated["input_ids"],
            collated["attention_mask"],
            collated["token_type_ids"],
            collated["labels"],
            batch.sentence_labels,
        )
