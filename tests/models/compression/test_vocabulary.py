"""Vocabularies without unused pieces: the texts that use what is left get the same answers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.processors import BertProcessing

from bert_models import TaskModel, load_model, open_checkpoint, save_model
from bert_models.compression import cut_vocabulary, keep_embeddings, used_ids
from bert_models.errors import CompressionError
from bert_models.tokenizer_files import read_tokenizer
from bert_runtime.tasks import FillMask

from ..toy_tokenizers import TEXT, train_bpe, train_sentencepiece

TEXTS = ["I lost my card", "where is the bank?", "thanks, bye"]
PAIR = ("I lost my card", "thanks, bye")


def cut_checkpoint(checkpoint: Path, texts: list[str], folder: Path) -> Path:
    source = open_checkpoint(checkpoint)
    vocabulary = cut_vocabulary(source.tokenizer(), used_ids(source.tokenizer(), texts))
    model = keep_embeddings(load_model(source, source.task()), vocabulary)
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "cut").mkdir()
    vocabulary.save(folder / "tokenizer", checkpoint)
    save_model(model, folder / "cut", tokenizer_from=folder / "tokenizer")
    return folder / "cut"


def logits(checkpoint: Path, text: Any) -> torch.Tensor:
    source = open_checkpoint(checkpoint)
    encoding = source.tokenizer().encode(*text) if isinstance(text, tuple) else source.tokenizer().encode(text)
    given = (torch.tensor([part]) for part in (encoding.ids, encoding.attention_mask, encoding.type_ids))
    with torch.no_grad():
        found: torch.Tensor = load_model(source, source.task())(*given)
    return found


def test_texts_of_kept_pieces_get_the_same_logits(classifier_checkpoint: Path, tmp_path: Path) -> None:
    cut = cut_checkpoint(classifier_checkpoint, TEXTS, tmp_path)
    before, after = open_checkpoint(classifier_checkpoint), open_checkpoint(cut)
    assert after.config.vocab_size < before.config.vocab_size
    assert after.tokenizer().get_vocab_size() == after.config.vocab_size
    for text in (*TEXTS, PAIR):
        assert torch.equal(logits(cut, text), logits(classifier_checkpoint, text))
    # what was dropped is spelled with what is left: nothing becomes unknown
    tokens = after.tokenizer().encode("the weather in the book").tokens
    assert "weather" not in tokens
    assert "[UNK]" not in tokens


@pytest.fixture
def undeclared(classifier_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint whose special tokens are pieces of the vocabulary alone."""
    folder = Path(shutil.copytree(classifier_checkpoint, tmp_path / "undeclared"))
    values = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**values, "added_tokens": []}))
    return folder


def test_special_tokens_stay_where_they_are_not_declared(undeclared: Path, tmp_path: Path) -> None:
    cut = cut_checkpoint(undeclared, TEXTS, tmp_path)
    assert open_checkpoint(cut).config.vocab_size < open_checkpoint(undeclared).config.vocab_size
    for text in (*TEXTS, PAIR):
        assert torch.equal(logits(cut, text), logits(undeclared, text))


def test_tokens_of_the_post_processor_and_of_padding_stay_whatever_their_names(undeclared: Path) -> None:
    tokenizer = open_checkpoint(undeclared).tokenizer()
    framing = [tokenizer.token_to_id(name) for name in ("hello", "weather")]
    tokenizer.post_processor = BertProcessing(("hello", framing[0]), ("weather", framing[1]))
    tokenizer.enable_padding(pad_id=(padding := tokenizer.token_to_id("book")), pad_token="book")
    assert {*framing, padding} <= set(cut_vocabulary(tokenizer, set()).old_ids)


def test_padding_that_is_dropped_is_an_error(classifier_checkpoint: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    book = source.tokenizer().token_to_id("book")
    model = TaskModel(replace(source.config, pad_token_id=book), source.task())
    with pytest.raises(CompressionError, match=f"keeps the padding token, whose id is {book} in config.json"):
        keep_embeddings(model, cut_vocabulary(source.tokenizer(), set()))


def test_transformers_reads_the_cut_tokenizer(classifier_checkpoint: Path, tmp_path: Path) -> None:
    cut = cut_checkpoint(classifier_checkpoint, TEXTS, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(cut)
    ours = open_checkpoint(cut).tokenizer()
    for text in (*TEXTS, "the weather"):
        assert theirs(text)["input_ids"] == ours.encode(text).ids


def test_a_unigram_tokenizer_keeps_its_pieces_of_seen_texts(tmp_path: Path) -> None:
    train_sentencepiece(tmp_path / "sentencepiece.bpe.model")
    assert sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.bpe.model"))
    tokenizer = read_tokenizer(tmp_path, "xlm-roberta")
    texts = TEXT[:4]
    vocabulary = cut_vocabulary(tokenizer, used_ids(tokenizer, texts))
    vocabulary.save(tmp_path, tmp_path)
    cut = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert cut.get_vocab_size() < tokenizer.get_vocab_size()
    for text in texts:
        found, expected = cut.encode(text), tokenizer.encode(text)
        assert found.tokens == expected.tokens
        assert [vocabulary.old_ids[token] for token in found.ids] == expected.ids


def test_bpe_is_refused(tmp_path: Path) -> None:
    train_bpe(tmp_path)
    tokenizer = read_tokenizer(tmp_path, "roberta")
    with pytest.raises(CompressionError, match=r"expected a WordPiece or unigram tokenizer .*, found BPE"):
        cut_vocabulary(tokenizer, {0})


def test_heads_that_predict_tokens_are_refused(classifier_checkpoint: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    vocabulary = cut_vocabulary(source.tokenizer(), set())
    model = TaskModel(source.config, FillMask(mask_token="[MASK]", mask_token_id=4))
    with pytest.raises(CompressionError, match="fill-mask predicts tokens of the whole vocabulary"):
        keep_embeddings(model, vocabulary)
