"""Read a checkpoint's tokenizer from `tokenizer.json` or from its family's vocabulary files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from bert_models.errors import CheckpointError
from bert_models.files import read_json
from bert_models.tokenizer_files.byte_level_bpe import build_byte_level_bpe
from bert_models.tokenizer_files.sentencepiece_models import (
    build_albert,
    build_camembert,
    build_deberta,
    build_xlm_roberta,
)
from bert_models.tokenizer_files.settings import TokenizerSettings
from bert_models.tokenizer_files.wordpiece import apply_settings, build_mpnet, build_wordpiece
from bert_runtime.tokenization.tokenizer_errors import tokenizer_errors

__all__ = ["TOKENIZER_FILES", "read_tokenizer"]


class _Kind(NamedTuple):
    """A kind of tokenizer."""

    files: tuple[str, ...]
    """Vocabulary files to build it from; all are required."""

    build: Callable[[Path, TokenizerSettings], Tokenizer]


_WORDPIECE = _Kind(("vocab.txt",), build_wordpiece)

_KINDS = {
    "bert": _WORDPIECE,
    "distilbert": _WORDPIECE,
    "electra": _WORDPIECE,
    "roberta": _Kind(("vocab.json", "merges.txt"), build_byte_level_bpe),
    "albert": _Kind(("spiece.model",), build_albert),
    "xlm-roberta": _Kind(("sentencepiece.bpe.model",), build_xlm_roberta),
    "camembert": _Kind(("sentencepiece.bpe.model",), build_camembert),
    "mpnet": _Kind(("vocab.txt",), build_mpnet),
    "deberta-v2": _Kind(("spm.model",), build_deberta),
    "ernie": _WORDPIECE,
    "nomic_bert": _WORDPIECE,
    "gte": _Kind(("sentencepiece.bpe.model",), build_xlm_roberta),
}
"""By family, the kind of tokenizer that its models were pre-trained with; those of other families are published as
`tokenizer.json` alone."""

_CLASSES = {
    "BertTokenizer": "bert",
    "DistilBertTokenizer": "distilbert",
    "ElectraTokenizer": "electra",
    "RobertaTokenizer": "roberta",
    "AlbertTokenizer": "albert",
    "XLMRobertaTokenizer": "xlm-roberta",
    "CamembertTokenizer": "camembert",
    "MPNetTokenizer": "mpnet",
    "DebertaV2Tokenizer": "deberta-v2",
}
"""`transformers` tokenizer classes without `Fast`, and their family; a RoBERTa model may use BERT's tokenizer."""

_SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

TOKENIZER_FILES = (
    "tokenizer.json",
    *_SETTINGS_FILES,
    *sorted({name for kind in _KINDS.values() for name in kind.files}),
)
"""All files of a checkpoint's tokenizer; saving a checkpoint copies them unchanged."""


def read_tokenizer(folder: Path, family_name: str) -> Tokenizer:
    """Read the tokenizer of a checkpoint.

    Args:
        folder: the checkpoint.
        family_name: a key of `FAMILIES`, which chooses the kind of tokenizer if the checkpoint does not name one.

    Raises:
        CheckpointError: the files are missing or damaged.
        MissingExtraError: the tokenizer is a SentencePiece model and sentencepiece is not installed.
    """
    path = folder / "tokenizer.json"
    if path.is_file():
        with tokenizer_errors(CheckpointError, f"{path}: expected a tokenizer file"):
            tokenizer = Tokenizer.from_file(str(path))
        config = folder / "tokenizer_config.json"
        values = read_json(config) if config.is_file() else None
        kind = None if values is None else _KINDS.get(_named_family(values) or family_name)
        if values is not None and kind is not None and kind.files == _WORDPIECE.files:
            apply_settings(tokenizer, TokenizerSettings(folder, values, {}))
        return tokenizer
    settings = TokenizerSettings.read(folder)
    kind = _KINDS.get(_family_of_class(settings) or family_name)
    if kind is None:
        raise CheckpointError(
            f"{folder}: expected a tokenizer in tokenizer.json, the only form in which those of {family_name} are "
            "published, found none; copy it from the checkpoint that this one was fine-tuned from"
        )
    missing = [name for name in kind.files if not (folder / name).is_file()]
    if missing:
        found = "neither" if len(missing) == len(kind.files) else f"no {', '.join(missing)}"
        raise CheckpointError(
            f"{folder}: expected a tokenizer in tokenizer.json or {' and '.join(kind.files)}, found {found}; "
            "copy it from the checkpoint that this one was fine-tuned from"
        )
    return kind.build(folder, settings)


def _family_of_class(settings: TokenizerSettings) -> str | None:
    """Return the family of the tokenizer class that the checkpoint names, or `None` if it names none."""
    name = settings.class_name
    if name is None:
        return None
    family = _named_family({"tokenizer_class": name})
    if family is None:
        raise CheckpointError(
            f"{settings.folder}: without tokenizer.json, expected a tokenizer_class of {', '.join(_CLASSES)}, "
            f"found {name!r:.80}; "
            "save the tokenizer as tokenizer.json: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    return family


def _named_family(values: Mapping[str, Any]) -> str | None:
    """Return the family of the `tokenizer_class` in `tokenizer_config.json`, `None` if it is unknown or not set."""
    return _CLASSES.get(str(values.get("tokenizer_class")).removesuffix("Fast"))
