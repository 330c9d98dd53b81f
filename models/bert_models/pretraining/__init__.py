"""Pre-training: raw text to batches, the models of each objective, and the run."""

from bert_models.pretraining.batches import (
    OBJECTIVES,
    BatchSettings,
    PretrainingBatch,
    PretrainingBatches,
    batch_loader,
)
from bert_models.pretraining.masking import MaskingSettings
from bert_models.pretraining.run import default_cache, pretrain
from bert_models.pretraining.settings import PretrainSettings
from bert_models.pretraining.start import Start
from bert_models.pretraining.token_cache import TokenCache, split_documents
from bert_models.pretraining.tokenizing import cached_tokens
from bert_models.pretraining.vocabulary import Vocabulary

__all__ = [
    "OBJECTIVES",
    "BatchSettings",
    "MaskingSettings",
    "PretrainSettings",
    "PretrainingBatch",
    "PretrainingBatches",
    "Start",
    "TokenCache",
    "Vocabulary",
    "batch_loader",
    "cached_tokens",
    "default_cache",
    "pretrain",
    "split_documents",
]
