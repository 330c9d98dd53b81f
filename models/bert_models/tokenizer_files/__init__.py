"""A checkpoint's tokenizer, read from `tokenizer.json` or built from its family's own vocabulary files."""

from bert_models.tokenizer_files.reading import TOKENIZER_FILES, read_tokenizer
from bert_models.tokenizer_files.wordpiece import wordpiece_settings

__all__ = ["TOKENIZER_FILES", "read_tokenizer", "wordpiece_settings"]
