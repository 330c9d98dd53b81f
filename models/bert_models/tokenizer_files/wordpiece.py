"""WordPiece from `vocab.txt`: BERT, DistilBERT, ELECTRA."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bert_models.errors import CheckpointError
from bert_models.tokenizer_files.settings import TokenizerSettings
from bert_models.tokenizer_files.special_tokens import BERT_SPECIAL_TOKENS

__all__ = ["apply_settings", "build_wordpiece", "wordpiece_pipeline", "wordpiece_settings"]


def build_wordpiece(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """BERT's tokenizer: `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]` with segment 1 from B on."""
    path = folder / "vocab.txt"
    try:
        vocab = models.WordPiece.read_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise CheckpointError(f"{path}: not a vocabulary (one token a line, UTF-8): {error}") from None
    roles = settings.roles(BERT_SPECIAL_TOKENS)
    tokenizer = wordpiece_pipeline(models.WordPiece(vocab, unk_token=roles["unk_token"].content), settings)
    settings.add_tokens(tokenizer, roles)
    sep, cls, _ = settings.with_ids(tokenizer, roles["sep_token"], roles["cls_token"], roles["unk_token"])
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return tokenizer


def wordpiece_pipeline(model: Any, settings: TokenizerSettings) -> Tokenizer:
    """What BERT does around its vocabulary, whether this is read or still to be trained."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=settings.optional_flag("strip_accents"),
        lowercase=settings.flag("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def apply_settings(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    """Gives BERT's normalizer of a `tokenizer.json` the settings of `tokenizer_config.json`, as transformers does."""
    found = tokenizer.normalizer
    if not isinstance(found, normalizers.BertNormalizer):
        return
    strip_accents = settings.optional_flag("strip_accents")
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=found.clean_text,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", found.handle_chinese_chars),
        strip_accents=found.strip_accents if strip_accents is None else strip_accents,
        lowercase=settings.flag("do_lower_case", found.lowercase),
    )


def wordpiece_settings(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """What `tokenizer_config.json` must say of a WordPiece `tokenizer.json`; empty for other kinds.

    transformers rebuilds the normalizer from that file even where `tokenizer.json` has one, and lower-cases by default.
    """
    normalizer = tokenizer.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        return {}
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": normalizer["lowercase"],
        "strip_accents": normalizer["strip_accents"],
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
    }
