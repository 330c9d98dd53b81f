"""The special tokens and templates that pre-training reads from tokenizers."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import BertProcessing

from bert_models import TrainingError
from bert_models.pretraining import PretrainingVocabulary
from bert_models.pretraining.vocabulary import SequenceTemplate, plain_tokenizer
from bert_models.tokenizer_files import read_tokenizer

from ..toy_corpus import toy_tokenizer
from ..toy_tokenizers import ALBERT_OPTIONS, MPNET_TOKENS, train_bpe, train_sentencepiece, train_wordpiece

BERT = SequenceTemplate(prefix=(2,), middle=(3,), suffix=(3,), second_type=1)


def test_roles_are_read_from_a_bert_tokenizer(toy_vocab: Path) -> None:
    tokenizer = toy_tokenizer(toy_vocab)
    found = PretrainingVocabulary.from_tokenizer(tokenizer)
    assert (found.pad_id, found.mask_id, found.template) == (0, 4, BERT)
    assert found.special_ids.tolist() == [0, 1, 2, 3, 4]
    assert found.regular_ids.tolist() == list(range(5, tokenizer.get_vocab_size()))
    assert found.size == tokenizer.get_vocab_size()
    assert (found.template.num_special, found.template.num_special_pair, found.template.separator) == (2, 3, 3)


@pytest.mark.parametrize(
    ("family", "pad", "template"),
    [
        ("albert", 0, BERT),
        ("roberta", 1, SequenceTemplate(prefix=(0,), middle=(2, 2), suffix=(2,), second_type=0)),
        ("xlm-roberta", 1, SequenceTemplate(prefix=(0,), middle=(2, 2), suffix=(2,), second_type=0)),
        ("camembert", 1, SequenceTemplate(prefix=(5,), middle=(6, 6), suffix=(6,), second_type=0)),
        ("mpnet", 1, SequenceTemplate(prefix=(0,), middle=(2, 2), suffix=(2,), second_type=0)),
    ],
)
def test_template_by_family(tmp_path: Path, family: str, pad: int, template: SequenceTemplate) -> None:
    if family == "roberta":
        train_bpe(tmp_path)
    elif family == "albert":
        train_sentencepiece(tmp_path / "spiece.model", **ALBERT_OPTIONS)
    elif family == "mpnet":  # has BERT's special tokens as well
        train_wordpiece(tmp_path, MPNET_TOKENS)
    else:
        train_sentencepiece(tmp_path / "sentencepiece.bpe.model")
    tokenizer = read_tokenizer(tmp_path, family)
    found = PretrainingVocabulary.from_tokenizer(tokenizer)
    assert found.mask_id == tokenizer.token_to_id("[MASK]" if family == "albert" else "<mask>")
    assert (found.pad_id, found.template) == (pad, template)
    assert found.size == tokenizer.get_vocab_size()
    assert len(found.special_ids) + len(found.regular_ids) == len(set(tokenizer.get_vocab().values()))


def test_gaps_and_undeclared_special_tokens() -> None:
    vocab = {"[PAD]": 0, "[MASK]": 1, "[CLS]": 2, "[SEP]": 3, "[UNK]": 4, "a": 5, "b": 9}
    tokenizer = framed(vocab)
    assert PretrainingVocabulary.from_tokenizer(tokenizer).special_ids.tolist() == [0, 1, 2, 3, 4]
    assert PretrainingVocabulary.from_tokenizer(tokenizer).regular_ids.tolist() == [5, 9]
    assert PretrainingVocabulary.from_tokenizer(tokenizer).size == 10


def framed(vocab: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def test_tokenizer_without_mask_padding_or_template_is_rejected() -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2}, unk_token="[UNK]"))
    with pytest.raises(TrainingError, match=r"no mask token; expected \[MASK\] or <mask>"):
        PretrainingVocabulary.from_tokenizer(tokenizer)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "[MASK]": 1, "a": 2}, unk_token="[UNK]"))
    with pytest.raises(TrainingError, match="no padding token"):
        PretrainingVocabulary.from_tokenizer(tokenizer)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "[MASK]": 1, "[PAD]": 2}, unk_token="[UNK]"))
    with pytest.raises(TrainingError, match="special tokens before, between and after two texts"):
        PretrainingVocabulary.from_tokenizer(tokenizer)


def test_plain_tokenizer_is_a_copy(toy_vocab: Path) -> None:
    tokenizer = toy_tokenizer(toy_vocab)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    plain = plain_tokenizer(tokenizer)
    assert len(plain.encode("a b c d e [MASK]")) > 9
    assert len(tokenizer.encode("a b c d e [MASK]")) == 9
    assert 4 in tokenizer.encode("[MASK]").ids
    assert 4 not in plain.encode("[MASK]").ids
