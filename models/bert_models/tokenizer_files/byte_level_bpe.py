"""Byte-level BPE from `vocab.json` and `merges.txt`, as in GPT-2 and RoBERTa."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from bert_models.errors import CheckpointError
from bert_models.tokenizer_files.settings import TokenizerSettings
from bert_models.tokenizer_files.special_tokens import ROBERTA_SPECIAL_TOKENS
from bert_runtime.tokenization.tokenizer_errors import tokenizer_errors

__all__ = ["build_byte_level_bpe", "byte_level_pipeline"]


def build_byte_level_bpe(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """Build RoBERTa's tokenizer: `<s> A </s>`, or `<s> A </s></s> B </s>` with segment 0 throughout.

    Args:
        folder: holds `vocab.json` and `merges.txt`.
        settings: the checkpoint's tokenizer settings.

    Raises:
        CheckpointError: the files are malformed or do not match the settings.
    """
    with tokenizer_errors(CheckpointError, f"{folder}: expected a byte-level BPE in vocab.json and merges.txt"):
        vocab, merges = models.BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        model = models.BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix="")
    tokenizer = byte_level_pipeline(model, settings)
    special = settings.special_tokens(ROBERTA_SPECIAL_TOKENS)
    settings.add_tokens(tokenizer, special)
    sep, cls = settings.with_ids(tokenizer, special["sep_token"], special["cls_token"])
    tokenizer.post_processor = processors.RobertaProcessing(
        sep,
        cls,
        trim_offsets=settings.flag("trim_offsets", True),
        add_prefix_space=settings.flag("add_prefix_space", False),
    )
    return tokenizer


def byte_level_pipeline(model: Any, settings: TokenizerSettings) -> Tokenizer:
    """Return RoBERTa's tokenizer around a BPE `model`, trained or not, without special tokens."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.flag("add_prefix_space", False))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
