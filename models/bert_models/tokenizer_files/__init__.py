"""A checkpoint's tokenizer, read from `tokenizer.json` or built from its family's own vocabulary files."""

from bert_models.tokenizer_files.reading import TOKENIZER_FILES, read_tokenizer

__all__ = ["TOKENIZER_FILES", "read_tokenizer"]
