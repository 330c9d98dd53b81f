"""Pre-train encoders on raw text: token cache, batches, the models of each objective, and the run."""

from bert_models.pretraining.batches import (
    OBJECTIVES,
    BatchSettings,
    PretrainingBatch,
    PretrainingBatches,
    batch_loader,
)
from bert_models.pretraining.masking import MaskingSettings
from bert_models.pretraining.model_source import InitialModel, LoadedModel, ModelSource
from bert_models.pretraining.run import default_cache_dir, pretrain
from bert_models.pretraining.settings import PretrainSettings
from bert_models.pretraining.token_cache import TokenCache, split_documents
from bert_models.pretraining.tokenizing import tokenize_corpus
from bert_models.pretraining.vocabulary import PretrainingVocabulary

__all__ = [
    "OBJECTIVES",
    "BatchSettings",
    "InitialModel",
    "LoadedModel",
    "MaskingSettings",
    "ModelSource",
    "PretrainSettings",
    "PretrainingBatch",
    "PretrainingBatches",
    "PretrainingVocabulary",
    "TokenCache",
    "batch_loader",
    "default_cache_dir",
    "pretrain",
    "split_documents",
    "tokenize_corpus",
]
