"""Train a tokenizer on text files, and write it for `transformers` and `read_tokenizer`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from bert_models.corpus import open_corpus
from bert_models.errors import TrainingError
from bert_models.files import write_json
from bert_models.tokenizer_files.reading import TOKENIZER_FILES, read_tokenizer
from bert_models.tokenizer_files.settings import TokenizerSettings
from bert_models.tokenizer_files.special_tokens import (
    ALBERT_SPECIAL_TOKENS,
    BERT_SPECIAL_TOKENS,
    ROBERTA_SPECIAL_TOKENS,
)
from bert_models.tokenizer_files.vocabularies import (
    VocabularyRequest,
    train_byte_level_bpe,
    train_unigram,
    train_wordpiece,
)
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.errors import DataError
from bert_runtime.records import Record, iter_records

__all__ = ["TOKENIZER_KINDS", "TrainedTokenizer", "train_tokenizer"]

_MAX_TOKENS = 512
"""Written as `model_max_length`, at which `transformers` truncates; a model's own limit may be lower."""

_MIN_FREQUENCY = 2
"""Default; a pair of pieces that occurs once in the corpus says nothing about other texts."""


@dataclass(frozen=True, kw_only=True)
class TrainedTokenizer:
    """Summary of a trained tokenizer."""

    kind: str
    """One of `TOKENIZER_KINDS`."""

    family: str
    """The family that uses this kind of tokenizer; models of other families may use it, too."""

    tokenizer_class: str
    """The `transformers` class that loads it."""

    vocab_size: int
    """Number of tokens, below `requested_vocab_size` if the corpus does not yield more."""

    requested_vocab_size: int
    special_tokens: Mapping[str, int]
    """Ids of the special tokens."""

    texts: int
    """Number of texts in the corpus."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A kind of tokenizer, and how to train it."""

    family: str
    tokenizer_class: str
    special_tokens: Mapping[str, AddedToken]
    """Special tokens by role."""

    first: Sequence[str]
    """Roles of the first tokens, ordered by id as in the family's published vocabularies. Differences: there is no gap
    after BERT's padding, and RoBERTa's mask is not last."""

    train: Callable[[VocabularyRequest, Path], None]
    """Writes the vocabulary files into a folder."""

    settings: Callable[[bool], dict[str, Any]]
    """Returns the normalizer's settings; the argument is whether to keep upper case and accents."""


_BERT_ORDER = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")

_KINDS = {
    "wordpiece": _Kind(
        family="bert",
        tokenizer_class="BertTokenizer",
        special_tokens=BERT_SPECIAL_TOKENS,
        first=_BERT_ORDER,
        train=train_wordpiece,
        settings=lambda cased: {"do_lower_case": not cased, "strip_accents": None, "tokenize_chinese_chars": True},
    ),
    "bpe": _Kind(
        family="roberta",
        tokenizer_class="RobertaTokenizer",
        special_tokens=ROBERTA_SPECIAL_TOKENS,
        first=("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"),
        train=train_byte_level_bpe,
        settings=lambda cased: {"do_lower_case": False, "add_prefix_space": False, "trim_offsets": True},
    ),
    "unigram": _Kind(
        family="albert",
        tokenizer_class="AlbertTokenizer",
        special_tokens=ALBERT_SPECIAL_TOKENS,
        first=_BERT_ORDER,
        train=train_unigram,
        settings=lambda cased: {"do_lower_case": not cased, "keep_accents": cased},
    ),
}

TOKENIZER_KINDS = tuple(_KINDS)
"""`wordpiece` as in BERT, byte-level `bpe` as in RoBERTa, `unigram` (SentencePiece) as in ALBERT."""


@dataclass
class _Corpus:
    """The texts of several files or datasets; every iteration streams them from disk again."""

    files: Sequence[str | Path]
    columns: Mapping[str, str] | None
    progress: Callable[[str], None]
    texts: int = field(default=0, init=False)
    """Number of texts in the last iteration."""

    def check(self) -> None:
        """Raise `DataError` if the first text of a file cannot be read, before any work is done."""
        for path in self.files:
            if next(self._texts(path), None) is None:
                raise DataError(f"{path}: expected texts, found blank rows only")

    def __iter__(self) -> Iterator[str]:
        self.texts = 0
        for path in self.files:
            self.progress(f"reading {path}")
            for text in self._texts(path):
                self.texts += 1
                yield text
        self.progress(f"read {self.texts} texts")

    def _texts(self, source: str | Path) -> Iterator[str]:
        """Yield the rows of a file, or the sentences of a dataset."""
        if str(source).startswith("dataset:") or Path(source).is_dir():
            corpus = open_corpus([source], field=(self.columns or {}).get("text", "text"))
            yield from (sentence.text for sentence in corpus.sentences())
        else:
            yield from map(_text, iter_records(source, self.columns))


def _text(record: Record) -> str:
    """Return a row's text; raise `DataError` if it has a lone surrogate, which JSON can escape."""
    text = record.text()
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = ord(text[error.start])
        raise DataError(f"{record.where}: expected 'text' in Unicode, found a lone surrogate (U+{found:04X})") from None
    return text


def train_tokenizer(
    files: Sequence[str | Path],
    kind: str,
    vocab_size: int,
    output: str | Path,
    *,
    cased: bool = False,
    min_frequency: int | None = None,
    columns: Mapping[str, str] | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> TrainedTokenizer:
    """Train a tokenizer on a corpus and write it to the folder `output`, atomically.

    The same files and settings always give the same tokenizer.

    Args:
        files: the corpus, which is streamed: files as `iter_records` reads them (`.txt` and `.md` with one text per
            line, `.jsonl` and others with a field `text`, each optionally `.gz`), or datasets as `open_corpus` reads
            them.
        kind: one of `TOKENIZER_KINDS`.
        vocab_size: maximum number of tokens, special tokens included.
        output: the folder to write.
        cased: keep upper case and accents; `bpe` always does.
        min_frequency: minimum number of occurrences of a pair of pieces to merge it, by default 2. Not for `unigram`,
            which prunes pieces by their likelihood.
        columns: our field names to the files', see `iter_records`.
        force: replace `output` if it is a tokenizer folder; anything else is never replaced.
        progress: called with the name of each stage.

    Raises:
        TrainingError: an argument is invalid, the corpus has no words, or `output` exists.
        DataError: a file cannot be read.
        MissingExtraError: `kind` is `unigram` and sentencepiece is not installed.
    """
    output = Path(output)
    _check_request(files, kind, vocab_size, min_frequency)
    _check_output(output, force=force)
    corpus = _Corpus([Path(path) for path in files], columns, progress)
    corpus.check()
    chosen = _KINDS[kind]
    special = [chosen.special_tokens[role] for role in chosen.first]
    config = _config(chosen, special, cased=cased)
    with atomic_replace_dir(output) as folder:
        write_json(folder / "tokenizer_config.json", config)
        request = VocabularyRequest(
            texts=corpus,
            size=vocab_size,
            min_frequency=min_frequency or _MIN_FREQUENCY,
            special_tokens=special,
            settings=TokenizerSettings(folder, config, {}),
        )
        chosen.train(request, folder)
        tokenizer = read_tokenizer(folder, chosen.family)
        tokenizer.save(str(folder / "tokenizer.json"))
    return TrainedTokenizer(
        kind=kind,
        family=chosen.family,
        tokenizer_class=chosen.tokenizer_class,
        vocab_size=tokenizer.get_vocab_size(),
        requested_vocab_size=vocab_size,
        special_tokens={token.content: number for number, token in enumerate(special)},
        texts=corpus.texts,
    )


def _config(kind: _Kind, special: Sequence[AddedToken], *, cased: bool) -> dict[str, Any]:
    """Return the contents of `tokenizer_config.json` in the format of `transformers` 4.34 and later."""
    flags = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {
        "tokenizer_class": kind.tokenizer_class,
        **kind.settings(cased),
        "model_max_length": _MAX_TOKENS,
        **{role: token.content for role, token in kind.special_tokens.items()},
        "added_tokens_decoder": {
            str(number): {flag: getattr(token, flag) for flag in flags} for number, token in enumerate(special)
        },
    }


def _check_request(files: Sequence[str | Path], kind: str, vocab_size: int, min_frequency: int | None) -> None:
    if kind not in _KINDS:
        raise TrainingError(f"expected a tokenizer kind of {', '.join(_KINDS)}, found {kind!r}")
    if not files:
        raise TrainingError("expected at least one file of texts, found none")
    if vocab_size < 1:
        raise TrainingError(f"expected a vocabulary size of at least 1, found {vocab_size}")
    if min_frequency is None:
        return
    if kind == "unigram":
        raise TrainingError("min_frequency is for wordpiece and bpe; unigram prunes pieces by their likelihood")
    if min_frequency < 1:
        raise TrainingError(f"expected a min_frequency of at least 1, found {min_frequency}")


def _check_output(output: Path, *, force: bool) -> None:
    """Raise `TrainingError` unless `output` is free, or a folder with nothing but a tokenizer and `force` is set."""
    if not output.exists():
        return
    names = {path.name for path in output.iterdir()} if output.is_dir() else None
    if names == set():
        return
    if names is None or "tokenizer.json" not in names or not names <= set(TOKENIZER_FILES):
        raise TrainingError(f"{output}: exists and is not a tokenizer folder; choose another output folder")
    if not force:
        raise TrainingError(f"{output}: a tokenizer is already there; replace it with --force")
