"""DeBERTa's tokenizer compared with SentencePiece, and with the `tokenizer.json` that transformers 4 wrote."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sentencepiece
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import DebertaV2Converter

from bert_models import CheckpointError
from bert_models.tokenizer_files import read_tokenizer

from ..toy_tokenizers import NASTY, TEXT, train_sentencepiece, view

OPTIONS = {
    "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]",
    "eos_piece": "[SEP]", "unk_piece": "[UNK]",
}  # fmt: skip
"""Special pieces in the order of the published models."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `spm.model` and a `config.json`, like the published checkpoints."""
    train_sentencepiece(tmp_path / "spm.model", **OPTIONS)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2"}))
    return tmp_path


def converted(folder: Path, *, do_lower_case: bool = False, split_by_punct: bool = False) -> Tokenizer:
    """Return what transformers 4 converts `spm.model` to, with the mask that it adds."""
    path = str(folder / "spm.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    slow = SimpleNamespace(
        vocab_file=path, do_lower_case=do_lower_case, split_by_punct=split_by_punct, add_prefix_space=True,
        convert_tokens_to_ids=processor.piece_to_id,
    )  # fmt: skip
    tokenizer = DebertaV2Converter(slow).converted()
    names = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer  # type: ignore[no-any-return]


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True}, {"split_by_punct": True}])
def test_nasty_strings_encode_like_transformers(folder: Path, settings: dict[str, Any]) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"vocab_type": "spm", **settings}))
    ours, theirs = read_tokenizer(folder, "deberta-v2"), converted(folder, **settings)
    assert ours.get_vocab() == theirs.get_vocab()
    texts = [*NASTY, *TEXT]
    for found, expected, text in zip(ours.encode_batch(texts), theirs.encode_batch(texts), texts, strict=True):
        assert view(found) == view(expected), text
    pairs = list(zip(texts, texts[1:] + texts[:1], strict=True))
    for found, expected, text in zip(ours.encode_batch(pairs), theirs.encode_batch(pairs), texts, strict=True):
        assert view(found) == view(expected), text


def test_ids_equal_those_of_sentencepiece(folder: Path) -> None:
    ours = read_tokenizer(folder, "deberta-v2")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    assert ours.token_to_id("[MASK]") == theirs.get_piece_size()
    # Neither special tokens nor the two points in which tokenizers differs, see test_reading.plain.
    for text in [text for text in (*TEXT, *NASTY) if not re.search(r"[\[<]|\x85|a\u0300\u0316", text)]:
        expected = theirs.encode(text) or [ours.token_to_id("▁")]  # of a text that is normalized to nothing
        assert ours.encode(text, add_special_tokens=False).ids in (expected, theirs.encode(text)), text


def test_transformers_reads_our_tokenizer_json(folder: Path) -> None:
    """Texts that the character map changes are left out: transformers 5 drops it."""
    ours = read_tokenizer(folder, "deberta-v2")
    ours.save(str(folder / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(folder)
    assert type(theirs).__name__ == "DebertaV2Tokenizer"
    assert theirs.mask_token_id == ours.token_to_id("[MASK]")
    for text in TEXT:
        assert view(ours.encode(text)) == view(theirs(text).encodings[0])
        assert view(read_tokenizer(folder, "deberta-v2").encode(text)) == view(ours.encode(text))


def test_mask_keeps_the_id_that_the_checkpoint_gives_it(folder: Path) -> None:
    size = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model")).get_piece_size()
    decoder = {str(size): {"content": "[E1]", "special": True}, str(size + 1): {"content": "[MASK]", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    tokenizer = read_tokenizer(folder, "deberta-v2")
    assert [tokenizer.token_to_id(token) for token in ("[E1]", "[MASK]")] == [size, size + 1]


def test_missing_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected a tokenizer in tokenizer\.json or spm\.model, found neither"):
        read_tokenizer(tmp_path, "deberta-v2")
