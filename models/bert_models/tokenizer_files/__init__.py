"""Tokenizers: read `tokenizer.json`, build one from a family's vocabulary files, or train a new one."""

from bert_models.tokenizer_files.reading import TOKENIZER_FILES, read_tokenizer
from bert_models.tokenizer_files.settings import read_model_max_length, read_truncation_side
from bert_models.tokenizer_files.training import TOKENIZER_KINDS, TrainedTokenizer, train_tokenizer
from bert_models.tokenizer_files.wordpiece import wordpiece_settings

__all__ = [
    "TOKENIZER_FILES",
    "TOKENIZER_KINDS",
    "TrainedTokenizer",
    "read_model_max_length",
    "read_tokenizer",
    "read_truncation_side",
    "train_tokenizer",
    "wordpiece_settings",
]
