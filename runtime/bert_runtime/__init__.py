"""Run exported BERT bundles: tokenization, inference and post-processing, without PyTorch."""

from bert_runtime.bundle.manifest import Manifest, Variant
from bert_runtime.errors import BertError, BundleError, DataError, InputError, NewerFormatError
from bert_runtime.loading import load
from bert_runtime.model import Model
from bert_runtime.tasks import TASKS, Classification, Embedding, SentenceEmbedding, TextClassification
from bert_runtime.tokenization import Batch
from bert_runtime.tuner import tune
from bert_runtime.verification import verify

__all__ = [
    "TASKS",
    "Batch",
    "BertError",
    "BundleError",
    "Classification",
    "DataError",
    "Embedding",
    "InputError",
    "Manifest",
    "Model",
    "NewerFormatError",
    "SentenceEmbedding",
    "TextClassification",
    "Variant",
    "load",
    "tune",
    "verify",
]
