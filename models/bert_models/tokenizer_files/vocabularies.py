"""Train vocabularies from text, and write the files that the builders of each kind read."""

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from bert_models.errors import TrainingError
from bert_models.tokenizer_files.byte_level_bpe import byte_level_pipeline
from bert_models.tokenizer_files.sentencepiece_models import albert_normalizers, model_message
from bert_models.tokenizer_files.settings import TokenizerSettings
from bert_models.tokenizer_files.wordpiece import wordpiece_pipeline

__all__ = ["VocabularyRequest", "train_byte_level_bpe", "train_unigram", "train_wordpiece"]


@dataclass(frozen=True, kw_only=True)
class VocabularyRequest:
    """Corpus and settings of a vocabulary to train."""

    texts: Iterable[str]
    """The corpus; WordPiece iterates over it twice."""

    size: int
    """Maximum number of tokens, special tokens included."""

    min_frequency: int
    """Minimum number of occurrences of a pair of pieces to merge it."""

    special_tokens: Sequence[AddedToken]
    """The first tokens, ordered by id."""

    settings: TokenizerSettings
    """Settings of normalizer and pre-tokenizer."""

    def check_size(self, alphabet_size: int, unit: str) -> None:
        """Raise `TrainingError` if special tokens and alphabet exceed `size`; `unit` names the alphabet's members."""
        min_size = len(self.special_tokens) + alphabet_size
        if self.size < min_size:
            raise TrainingError(
                f"expected a vocabulary size of at least {min_size} ({len(self.special_tokens)} special tokens and "
                f"{alphabet_size} {unit}), found {self.size}"
            )


def train_wordpiece(request: VocabularyRequest, folder: Path) -> None:
    """Train WordPiece and write `vocab.txt`: special tokens, alphabet (word starts, then continuations), merged pieces.

    Raises:
        TrainingError: the corpus has no words, or `size` is below special tokens and alphabet.
    """
    special = [token.content for token in request.special_tokens]
    # The trainer numbers continuation characters in hash table order, which differs between processes, and breaks ties
    # by these numbers. So a first training collects the alphabet, and a second one gets it sorted by code point.
    alphabet = set(_wordpiece_vocab(request, special, size=0).get_vocab()) - set(special)
    if not alphabet:
        raise _no_words()
    request.check_size(len(alphabet), "characters at the start of words and inside them")
    first = sorted(alphabet, key=lambda token: (len(token) > 1, token))
    _wordpiece_vocab(request, [*special, *first], size=request.size).model.save(str(folder))


def _wordpiece_vocab(request: VocabularyRequest, first: list[str], *, size: int) -> Tokenizer:
    tokenizer = wordpiece_pipeline(models.WordPiece(), request.settings)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=request.min_frequency, special_tokens=first, show_progress=False
    )
    tokenizer.train_from_iterator(request.texts, trainer)
    return tokenizer


def train_byte_level_bpe(request: VocabularyRequest, folder: Path) -> None:
    """Train byte-level BPE and write `vocab.json` and `merges.txt`: special tokens, the 256 bytes, merged pieces.

    Raises:
        TrainingError: `size` is below special tokens and bytes.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    request.check_size(len(alphabet), "bytes")
    tokenizer = byte_level_pipeline(models.BPE(), request.settings)
    trainer = trainers.BpeTrainer(
        vocab_size=request.size,
        min_frequency=request.min_frequency,
        special_tokens=[token.content for token in request.special_tokens],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(request.texts, trainer)
    tokenizer.model.save(str(folder))


def train_unigram(request: VocabularyRequest, folder: Path) -> None:
    """Train a unigram language model (Kudo, arXiv:1804.10959) and write `spiece.model`.

    It holds the special tokens, then pieces with log probabilities, among them every character of the corpus.

    This uses SentencePiece's trainer. That of `tokenizers` sums in hash table order, so its pieces differ between runs,
    and is two to four times slower (6.5 s vs. 1.7 and 3.0 s for 3 MB of books and 8,000 pieces on one busy core, both
    called directly).

    Raises:
        TrainingError: the corpus has no words, or `size` is below special tokens and alphabet.
        MissingExtraError: sentencepiece is not installed.
    """
    rule = _sentencepiece({"a": 1}, 8, request.special_tokens, "nmt_nfkc").normalizer_spec
    words = _count_words(request, rule.precompiled_charsmap)
    alphabet = {character for word in words for character in word}
    if not alphabet:
        raise _no_words()
    request.check_size(len(alphabet | {"▁"}), "characters")
    model = _sentencepiece(words, request.size, request.special_tokens, "identity")  # words are already normalized
    model.normalizer_spec.CopyFrom(rule)
    (folder / "spiece.model").write_bytes(model.SerializeToString(deterministic=True))


def _sentencepiece(words: Mapping[str, int], size: int, special_tokens: Sequence[AddedToken], rule: str) -> Any:
    """Train a SentencePiece model on words with their counts, and return its `ModelProto`."""
    message = model_message("training a unigram tokenizer")
    import sentencepiece

    padding, unknown, *others = (token.content for token in special_tokens)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in sorted(words.items())), input_format="tsv",
            model_writer=model, model_type="unigram", vocab_size=size, normalization_rule_name=rule,
            pad_id=0, pad_piece=padding, unk_id=1, unk_piece=unknown, bos_id=-1, eos_id=-1, control_symbols=others,
            character_coverage=1.0,  # like the other kinds: no character of the corpus is unknown
            hard_vocab_limit=False,  # a small corpus has fewer pieces than requested
            num_threads=16,  # sums are per thread: a fixed number gives the same pieces on every machine
            minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        raise TrainingError(f"SentencePiece cannot train on these texts: {error}") from None
    message.ParseFromString(model.getvalue())
    return message


def _count_words(request: VocabularyRequest, charsmap: bytes) -> Counter[str]:
    """Count the words of the corpus, which are all that the trainer needs.

    `tokenizers` normalizes the texts, as it will when the tokenizer is used. SentencePiece differs for some composed
    characters: after ALBERT's normalizers it composes Hangul syllables again.
    """
    normalizer = normalizers.Sequence([*albert_normalizers(request.settings), normalizers.Precompiled(charsmap)])
    words: Counter[str] = Counter()
    for text in request.texts:
        words.update(normalizer.normalize_str(text).split())
    return words


def _no_words() -> TrainingError:
    return TrainingError("expected texts with words in them, found only white space and control characters")
