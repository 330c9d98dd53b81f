"""WordPiece from `vocab.txt`, as in BERT, DistilBERT, ELECTRA and MPNet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bert_models.errors import CheckpointError
from bert_models.tokenizer_files.settings import TokenizerSettings
from bert_models.tokenizer_files.special_tokens import BERT_SPECIAL_TOKENS, MPNET_SPECIAL_TOKENS
from bert_runtime.tokenization.tokenizer_errors import tokenizer_errors

__all__ = ["apply_settings", "build_mpnet", "build_wordpiece", "wordpiece_pipeline", "wordpiece_settings"]


def build_wordpiece(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """Build BERT's tokenizer: `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]` with segment 1 from B on.

    Args:
        folder: holds `vocab.txt`.
        settings: the checkpoint's tokenizer settings.

    Raises:
        CheckpointError: the file is malformed or does not match the settings.
    """
    tokenizer, sep, cls = _assemble(folder, settings, BERT_SPECIAL_TOKENS)
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return tokenizer


def build_mpnet(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """Build MPNet's tokenizer, like `build_wordpiece`: `<s> A </s>`, or `<s> A </s></s> B </s>` with segment 0
    throughout.
    """
    tokenizer, sep, cls = _assemble(folder, settings, MPNET_SPECIAL_TOKENS)
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=False)
    return tokenizer


def _assemble(
    folder: Path, settings: TokenizerSettings, defaults: Mapping[str, AddedToken]
) -> tuple[Tokenizer, tuple[str, int], tuple[str, int]]:
    """Return the tokenizer without post-processor, and its separator and first token with their ids."""
    path = folder / "vocab.txt"
    with tokenizer_errors(CheckpointError, f"{path}: expected a vocabulary (one token per line, UTF-8)"):
        vocab = models.WordPiece.read_file(str(path))
    special = settings.special_tokens(defaults)
    tokenizer = wordpiece_pipeline(models.WordPiece(vocab, unk_token=special["unk_token"].content), settings)
    settings.add_tokens(tokenizer, special)
    sep, cls, _ = settings.with_ids(tokenizer, special["sep_token"], special["cls_token"], special["unk_token"])
    return tokenizer, sep, cls


def wordpiece_pipeline(model: Any, settings: TokenizerSettings) -> Tokenizer:
    """Return BERT's tokenizer around a WordPiece `model`, trained or not, without special tokens."""
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
    """Apply `tokenizer_config.json` to the BERT normalizer of a `tokenizer.json`, as `transformers` does."""
    current = tokenizer.normalizer
    if not isinstance(current, normalizers.BertNormalizer):
        return
    strip_accents = settings.optional_flag("strip_accents")
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=current.clean_text,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", current.handle_chinese_chars),
        strip_accents=current.strip_accents if strip_accents is None else strip_accents,
        lowercase=settings.flag("do_lower_case", current.lowercase),
    )


def wordpiece_settings(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that `tokenizer_config.json` needs for a WordPiece tokenizer; empty for other kinds.

    `transformers` rebuilds the normalizer from that file even if `tokenizer.json` has one, and lower-cases by default.

    Args:
        tokenizer: the contents of `tokenizer.json`.
    """
    normalizer = tokenizer.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        return {}
    follows_roberta = (tokenizer.get("post_processor") or {}).get("type") == "RobertaProcessing"
    return {
        "tokenizer_class": "MPNetTokenizer" if follows_roberta else "BertTokenizer",
        "do_lower_case": normalizer["lowercase"],
        "strip_accents": normalizer["strip_accents"],
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
    }
