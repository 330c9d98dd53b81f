"""A checkpoint's tokenizer: `tokenizer.json`, or BERT's WordPiece from `vocab.txt`."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bert_models.errors import CheckpointError
from bert_models.files import read_json

__all__ = ["TOKENIZER_FILES", "read_tokenizer"]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
"""Files that belong to a checkpoint's tokenizer; they are copied as they are when a checkpoint is saved."""


def read_tokenizer(folder: Path) -> Tokenizer:
    """The checkpoint's tokenizer, ready for `TextTokenizer`; raises `CheckpointError` when there is none."""
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            raise CheckpointError(f"{path}: not a tokenizer file: {error}") from None
    if (folder / "vocab.txt").is_file():
        return _wordpiece(folder)
    raise CheckpointError(
        f"{folder}: expected a tokenizer in tokenizer.json or vocab.txt, found neither; "
        "copy it from the checkpoint that this one was fine-tuned from"
    )


def _wordpiece(folder: Path) -> Tokenizer:
    """BERT's tokenizer from its vocabulary and the switches in `tokenizer_config.json`."""
    config_path = folder / "tokenizer_config.json"
    config = read_json(config_path) if config_path.is_file() else {}
    vocab = models.WordPiece.read_file(str(folder / "vocab.txt"))
    cls, sep, unknown = (
        config.get(key, default)
        for key, default in (("cls_token", "[CLS]"), ("sep_token", "[SEP]"), ("unk_token", "[UNK]"))
    )
    absent = [token for token in (cls, sep, unknown) if token not in vocab]
    if absent:
        raise CheckpointError(f"{folder / 'vocab.txt'}: expected the special tokens {', '.join(absent)}, found none")
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing((sep, vocab[sep]), (cls, vocab[cls]))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([token for token in (cls, sep, unknown, "[PAD]", "[MASK]") if token in vocab])
    return tokenizer
