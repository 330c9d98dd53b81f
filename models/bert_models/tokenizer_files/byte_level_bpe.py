"""Byte-level BPE from `vocab.json` and `merges.txt`: RoBERTa."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from bert_models.errors import CheckpointError
from bert_models.tokenizer_files.settings import TokenizerSettings
from bert_models.tokenizer_files.special_tokens import ROBERTA_SPECIAL_TOKENS

__all__ = ["build_byte_level_bpe", "byte_level_pipeline"]


def build_byte_level_bpe(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """RoBERTa's tokenizer: `<s> A </s>`, or `<s> A </s></s> B </s>` with all segments 0."""
    try:
        vocab, merges = models.BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        model = models.BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix="")
    except Exception as error:  # tokenizers raises plain Exception
        raise CheckpointError(f"{folder}: vocab.json and merges.txt are no byte-level BPE: {error}") from None
    tokenizer = byte_level_pipeline(model, settings)
    roles = settings.roles(ROBERTA_SPECIAL_TOKENS)
    settings.add_tokens(tokenizer, roles)
    sep, cls = settings.with_ids(tokenizer, roles["sep_token"], roles["cls_token"])
    tokenizer.post_processor = processors.RobertaProcessing(
        sep,
        cls,
        trim_offsets=settings.flag("trim_offsets", True),
        add_prefix_space=settings.flag("add_prefix_space", False),
    )
    return tokenizer


def byte_level_pipeline(model: Any, settings: TokenizerSettings) -> Tokenizer:
    """What RoBERTa does around its merges, whether these are read or still to be trained."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.flag("add_prefix_space", False))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
