"""Texts to padded token ids, and long texts without tokenizing what truncation would drop."""

from bert_runtime.tokenization.all_tokens import Token
from bert_runtime.tokenization.batch import Batch, check_batch, check_ids, pad
from bert_runtime.tokenization.text_tokenizer import UNKNOWN_TOKENS, TextTokenizer

__all__ = ["UNKNOWN_TOKENS", "Batch", "TextTokenizer", "Token", "check_batch", "check_ids", "pad"]
