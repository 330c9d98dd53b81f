"""Choosing a vocabulary from text: what is written is what the builders of each kind read."""

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from bert_models.errors import TrainingError
from bert_models.tokenizer_files.byte_level_bpe import byte_level_pipeline
from bert_models.tokenizer_files.sentencepiece_models import albert_steps, model_message
from bert_models.tokenizer_files.settings import TokenizerSettings
from bert_models.tokenizer_files.wordpiece import wordpiece_pipeline

__all__ = ["VocabularyRequest", "train_byte_level_bpe", "train_unigram", "train_wordpiece"]


@dataclass(frozen=True, kw_only=True)
class VocabularyRequest:
    """What a vocabulary is to be made of."""

    texts: Iterable[str]
    """The corpus; it is gone through twice for WordPiece."""

    size: int
    """Most tokens to make, special tokens included."""

    min_frequency: int
    """Least number of times that two pieces stand side by side to become one."""

    special_tokens: Sequence[AddedToken]
    """The first tokens, in the order of their ids."""

    settings: TokenizerSettings
    """What is done to a text before its pieces are looked up."""

    def check_size(self, letters: int, what: str) -> None:
        """Raises `TrainingError` where the special tokens and single letters alone are more than was asked for."""
        least = len(self.special_tokens) + letters
        if self.size < least:
            raise TrainingError(
                f"expected a vocabulary size of at least {least} ({len(self.special_tokens)} special tokens and "
                f"{letters} {what}), found {self.size}"
            )


def train_wordpiece(request: VocabularyRequest, folder: Path) -> None:
    """Writes `vocab.txt`: special tokens, letters, letters inside words, then what they join to."""
    special = [token.content for token in request.special_tokens]
    # The trainer numbers letters inside words in the order of a hash table, which is another in every process, and
    # breaks ties by these numbers. So a first run collects the letters, and a second gets them in the order of Unicode.
    letters = set(_wordpiece_vocab(request, special, size=0).get_vocab()) - set(special)
    if not letters:
        raise _no_words()
    request.check_size(len(letters), "letters, each at the start of a word and inside one")
    first = sorted(letters, key=lambda token: (len(token) > 1, token))
    _wordpiece_vocab(request, [*special, *first], size=request.size).model.save(str(folder))


def _wordpiece_vocab(request: VocabularyRequest, first: list[str], *, size: int) -> Tokenizer:
    tokenizer = wordpiece_pipeline(models.WordPiece(), request.settings)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=request.min_frequency, special_tokens=first, show_progress=False
    )
    tokenizer.train_from_iterator(request.texts, trainer)
    return tokenizer


def train_byte_level_bpe(request: VocabularyRequest, folder: Path) -> None:
    """Writes `vocab.json` and `merges.txt`: special tokens, the 256 bytes, then what they join to."""
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
    """Writes `spiece.model`: special tokens, then pieces with their log probabilities, every letter among them.

    SentencePiece's own trainer makes it: that of `tokenizers` sums in the order of a hash table, so that pieces differ
    from run to run, and takes two to four times as long (6.5 s to 1.7 and 3.0 s for 3 MB of books and 8,000 pieces on
    one busy core, both called directly).
    """
    rule = _sentencepiece({"a": 1}, 8, request.special_tokens, "nmt_nfkc").normalizer_spec
    words = _count_words(request, rule.precompiled_charsmap)
    letters = {letter for word in words for letter in word}
    if not letters:
        raise _no_words()
    request.check_size(len(letters | {"▁"}), "letters")
    model = _sentencepiece(words, request.size, request.special_tokens, "identity")  # they are normalized already
    model.normalizer_spec.CopyFrom(rule)
    (folder / "spiece.model").write_bytes(model.SerializeToString(deterministic=True))


def _sentencepiece(words: Mapping[str, int], size: int, special_tokens: Sequence[AddedToken], rule: str) -> Any:
    """SentencePiece's model of the words with their counts."""
    message = model_message("training a unigram tokenizer")
    import sentencepiece

    padding, unknown, *others = (token.content for token in special_tokens)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in sorted(words.items())), input_format="tsv",
            model_writer=model, model_type="unigram", vocab_size=size, normalization_rule_name=rule,
            pad_id=0, pad_piece=padding, unk_id=1, unk_piece=unknown, bos_id=-1, eos_id=-1, control_symbols=others,
            character_coverage=1.0,  # as the other kinds: no letter of the corpus is unknown
            hard_vocab_limit=False,  # a small corpus has fewer pieces than were asked for
            num_threads=16,  # sums are made by thread: one number on every machine gives the same pieces on each
            minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        raise TrainingError(f"SentencePiece cannot train on these texts: {error}") from None
    message.ParseFromString(model.getvalue())
    return message


def _count_words(request: VocabularyRequest, charsmap: bytes) -> Counter[str]:
    """How often each word stands in the corpus: all that the trainer looks at, and far smaller than the corpus.

    Texts are normalized by `tokenizers`, as they will be when the tokenizer is used. SentencePiece does the same but
    for some letters of several parts: after ALBERT's steps it alone puts Hangul syllables together again.
    """
    normalizer = normalizers.Sequence([*albert_steps(request.settings), normalizers.Precompiled(charsmap)])
    words: Counter[str] = Counter()
    for text in request.texts:
        words.update(normalizer.normalize_str(text).split())
    return words


def _no_words() -> TrainingError:
    return TrainingError("expected texts with words in them, found only white space and control characters")
