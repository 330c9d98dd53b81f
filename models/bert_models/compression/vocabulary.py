"""Drop the pieces of a vocabulary that the texts of a task do not use, and rewrite the tokenizer to match."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from bert_models.errors import CompressionError
from bert_models.files import read_json, write_json
from bert_models.model import TaskModel
from bert_models.pretraining.vocabulary import plain_tokenizer
from bert_models.tokenizer_files.special_tokens import (
    ALBERT_SPECIAL_TOKENS,
    BERT_SPECIAL_TOKENS,
    ROBERTA_SPECIAL_TOKENS,
)
from bert_runtime.tasks import FillMask, SparseEmbedding

__all__ = ["CutVocabulary", "check_cuttable", "cut_vocabulary", "keep_embeddings", "used_ids"]

_CONTINUATION = "##"
"""WordPiece's prefix of pieces that continue a word."""

_SPECIAL_PIECES = {
    token.content
    for tokens in (BERT_SPECIAL_TOKENS, ALBERT_SPECIAL_TOKENS, ROBERTA_SPECIAL_TOKENS)
    for token in tokens.values()
}
"""Pieces that stay where a vocabulary has them: a tokenizer may declare none, and `config.json` names padding by id."""


@dataclass(frozen=True)
class CutVocabulary:
    """A tokenizer with fewer pieces."""

    tokenizer_json: Mapping[str, Any]
    """The contents of its `tokenizer.json`."""
    old_ids: tuple[int, ...]
    """For each new id the id that the token had before, ascending."""

    def save(self, folder: Path, settings_from: Path) -> None:
        """Write the tokenizer with the settings of another one, such as its maximum length, into a folder."""
        write_json(folder / "tokenizer.json", self.tokenizer_json)
        path = settings_from / "tokenizer_config.json"
        if path.is_file():
            settings = read_json(path)
            settings.pop("added_tokens_decoder", None)  # has the ids of before; tokenizer.json has them, too
            write_json(folder / "tokenizer_config.json", settings)
        model = self.tokenizer_json["model"]
        if model["type"] == "WordPiece":
            pieces = sorted(model["vocab"], key=model["vocab"].get)
            (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")


def used_ids(tokenizer: Tokenizer, texts: Iterable[str]) -> set[int]:
    """Return the ids of all tokens in some texts."""
    plain = plain_tokenizer(tokenizer)
    return {token for encoding in plain.encode_batch(list(texts), add_special_tokens=False) for token in encoding.ids}


def check_cuttable(tokenizer: Tokenizer) -> None:
    """Raise `CompressionError` if the vocabulary of a tokenizer cannot be cut.

    The merges of BPE depend on pieces that no text shows.
    """
    kind = json.loads(tokenizer.to_str())["model"].get("type")
    if kind not in ("WordPiece", "Unigram"):
        raise CompressionError(f"expected a WordPiece or unigram tokenizer to cut the vocabulary of, found {kind}")


def cut_vocabulary(tokenizer: Tokenizer, used: set[int]) -> CutVocabulary:
    """Drop the pieces that are not used.

    Special and added tokens stay, declared or not, and so do all pieces of one character, so that what could be spelled
    still can. Texts of used pieces alone are tokenized as before: WordPiece takes the longest piece that fits, and a
    unigram model the most probable pieces, which are still there; other texts get more and shorter pieces.

    Args:
        tokenizer: a WordPiece or unigram tokenizer.
        used: ids of the pieces to keep.

    Raises:
        CompressionError: the tokenizer is of another kind, see `check_cuttable`.
    """
    check_cuttable(tokenizer)
    values = json.loads(tokenizer.to_str())
    pieces = _pieces(values["model"])
    added = {token["id"] for token in values["added_tokens"]}
    kept = used | added | _framing_ids(values) | _indispensable(values["model"], pieces)
    old_ids = tuple(sorted(kept & (set(pieces) | added)))
    new_ids = {old: new for new, old in enumerate(old_ids)}
    return CutVocabulary(_renumbered(values, new_ids), old_ids)


def _pieces(model: Mapping[str, Any]) -> dict[int, str]:
    """Return the pieces of a tokenizer's model by id."""
    if model["type"] == "WordPiece":
        return {number: piece for piece, number in model["vocab"].items()}
    return {number: piece for number, (piece, _) in enumerate(model["vocab"])}


def _framing_ids(values: Mapping[str, Any]) -> set[int]:
    """Return the ids that a tokenizer file adds to texts: of padding and of its post-processor."""
    padding = values.get("padding")
    return _processor_ids(values["post_processor"]) | ({padding["pad_id"]} if padding else set())


def _processor_ids(processor: Any) -> set[int]:
    """Return the ids of a post-processor's special tokens."""
    if processor is None:
        return set()
    if processor["type"] == "Sequence":
        return set().union(*map(_processor_ids, processor["processors"]))
    if processor["type"] == "TemplateProcessing":
        return {number for token in processor["special_tokens"].values() for number in token["ids"]}
    return {processor[name][1] for name in ("cls", "sep") if name in processor}


def _indispensable(model: Mapping[str, Any], pieces: Mapping[int, str]) -> set[int]:
    """Return the ids of special pieces, pieces of one character, and those that the model's algorithm refers to."""
    kept = {
        number
        for number, piece in pieces.items()
        if piece in _SPECIAL_PIECES or len(piece.removeprefix(_CONTINUATION)) <= 1
    }
    if model["type"] == "WordPiece":
        return kept | {number for number, piece in pieces.items() if piece == model["unk_token"]}
    least = min(range(len(model["vocab"])), key=lambda number: model["vocab"][number][1])  # sets the price of unknowns
    bytes_ = {number for number, piece in pieces.items() if piece.startswith("<0x")}
    return kept | bytes_ | {least} | ({model["unk_id"]} - {None})


def _renumbered(values: dict[str, Any], new_ids: Mapping[int, int]) -> dict[str, Any]:
    """Return a tokenizer file with other ids, without the pieces that have none."""
    model = dict(values["model"])
    if model["type"] == "WordPiece":
        model["vocab"] = {piece: new_ids[old] for piece, old in model["vocab"].items() if old in new_ids}
    else:
        model["vocab"] = [entry for old, entry in enumerate(model["vocab"]) if old in new_ids]
        model["unk_id"] = None if model["unk_id"] is None else new_ids[model["unk_id"]]
    added = [{**token, "id": new_ids[token["id"]]} for token in values["added_tokens"]]
    padding = values.get("padding")
    if padding is not None:
        padding = {**padding, "pad_id": new_ids[padding["pad_id"]]}
    processor = _renumbered_processor(values["post_processor"], new_ids)
    return {**values, "model": model, "added_tokens": added, "padding": padding, "post_processor": processor}


def _renumbered_processor(processor: Any, new_ids: Mapping[int, int]) -> Any:
    """Return a post-processor whose special tokens have other ids."""
    if processor is None:
        return None
    if processor["type"] == "Sequence":
        parts = [_renumbered_processor(part, new_ids) for part in processor["processors"]]
        return {**processor, "processors": parts}
    if processor["type"] == "TemplateProcessing":
        tokens = {
            name: {**token, "ids": [new_ids[old] for old in token["ids"]]}
            for name, token in processor["special_tokens"].items()
        }
        return {**processor, "special_tokens": tokens}
    framing = {name: [processor[name][0], new_ids[processor[name][1]]] for name in ("cls", "sep") if name in processor}
    return {**processor, **framing}


def keep_embeddings(model: TaskModel, vocabulary: CutVocabulary) -> TaskModel:
    """Copy a model with the token embeddings of a cut vocabulary, in evaluation mode.

    Raises:
        CompressionError: the task's head predicts tokens, which need their embeddings, or padding was dropped.
    """
    if isinstance(model.task, FillMask | SparseEmbedding):
        raise CompressionError(f"{model.task.name} predicts tokens of the whole vocabulary, which cannot be cut")
    old_ids, config = vocabulary.old_ids, model.config
    if config.pad_token_id not in old_ids:
        raise CompressionError(
            f"expected a vocabulary that keeps the padding token, whose id is {config.pad_token_id} in config.json; "
            "declare it in the added_tokens of tokenizer.json"
        )
    pad_token_id = old_ids.index(config.pad_token_id)
    if config.positions == "after_padding" and pad_token_id != config.pad_token_id:
        raise CompressionError(
            f"positions of {config.family} count from the padding token's id {config.pad_token_id}, which would become "
            f"{pad_token_id}"
        )
    student = TaskModel(replace(config, vocab_size=len(old_ids), pad_token_id=pad_token_id), model.task)
    tensors = model.state_dict()
    name = "encoder.embeddings.token.weight"
    tensors[name] = torch.index_select(tensors[name], 0, torch.tensor(old_ids))
    student.load_state_dict(tensors)
    return student.eval()
