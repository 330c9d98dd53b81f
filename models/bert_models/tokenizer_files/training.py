"""Training a tokenizer on text files, written as `transformers` and `read_tokenizer` read it."""

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
"""The length at which `transformers` truncates; a model that reads less says so itself."""

_MIN_FREQUENCY = 2
"""A pair that stands in the corpus once says nothing about other texts."""


@dataclass(frozen=True, kw_only=True)
class TrainedTokenizer:
    """What was made, and of how much."""

    kind: str
    family: str
    """The family whose models are pretrained with such a tokenizer; any other may have it, too."""

    tokenizer_class: str
    vocab_size: int
    """Tokens there are: fewer than were asked for where the corpus has no more."""

    requested_vocab_size: int
    special_tokens: Mapping[str, int]
    """Their ids."""

    texts: int


@dataclass(frozen=True, kw_only=True)
class _Kind:
    family: str
    tokenizer_class: str
    roles: Mapping[str, AddedToken]
    first: Sequence[str]
    """The roles of the first tokens, in the order of their ids: those of the family's published vocabularies, but that
    there is no gap after BERT's padding, and that RoBERTa's mask is not the last."""

    learn: Callable[[VocabularyRequest, Path], None]
    settings: Callable[[bool], dict[str, Any]]
    """Settings of the pipeline by whether upper case and accents are kept."""


_BERT_ORDER = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")

_KINDS = {
    "wordpiece": _Kind(
        family="bert",
        tokenizer_class="BertTokenizer",
        roles=BERT_SPECIAL_TOKENS,
        first=_BERT_ORDER,
        learn=train_wordpiece,
        settings=lambda cased: {"do_lower_case": not cased, "strip_accents": None, "tokenize_chinese_chars": True},
    ),
    "bpe": _Kind(
        family="roberta",
        tokenizer_class="RobertaTokenizer",
        roles=ROBERTA_SPECIAL_TOKENS,
        first=("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"),
        learn=train_byte_level_bpe,
        settings=lambda cased: {"do_lower_case": False, "add_prefix_space": False, "trim_offsets": True},
    ),
    "unigram": _Kind(
        family="albert",
        tokenizer_class="AlbertTokenizer",
        roles=ALBERT_SPECIAL_TOKENS,
        first=_BERT_ORDER,
        learn=train_unigram,
        settings=lambda cased: {"do_lower_case": not cased, "keep_accents": cased},
    ),
}

TOKENIZER_KINDS = tuple(_KINDS)
"""`wordpiece` as BERT has it, byte-level `bpe` as RoBERTa, `unigram` as ALBERT."""


@dataclass
class _Corpus:
    """The texts of several files or datasets, read anew each time it is gone through, a row at a time."""

    files: Sequence[str | Path]
    columns: Mapping[str, str] | None
    progress: Callable[[str], None]
    texts: int = field(default=0, init=False)
    """How many there were the last time."""

    def check(self) -> None:
        """Raises `DataError` for a file that cannot be opened or does not begin as it should, before any work."""
        for path in self.files:
            next(self._texts(path))

    def __iter__(self) -> Iterator[str]:
        self.texts = 0
        for path in self.files:
            self.progress(f"reading {path}")
            for text in self._texts(path):
                self.texts += 1
                yield text
        self.progress(f"read {self.texts} texts")

    def _texts(self, source: str | Path) -> Iterator[str]:
        """The rows of a file, or the sentences of a dataset."""
        if str(source).startswith("dataset:") or Path(source).is_dir():
            corpus = open_corpus([source], field=(self.columns or {}).get("text", "text"))
            yield from (each.text for each in corpus.sentences())
        else:
            yield from map(_text, iter_records(source, self.columns))


def _text(record: Record) -> str:
    """A row's text; raises `DataError` where it is no Unicode text, which JSON can hold."""
    text = record.text()
    try:
        text.encode()
    except UnicodeEncodeError as error:
        letter = ord(text[error.start])
        raise DataError(f"{record.where}: 'text' holds a lone surrogate (U+{letter:04X})") from None
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
    """Trains a tokenizer of `vocab_size` tokens on `files` and writes it to `output`, whole or not at all.

    The same files and settings give the same tokenizer. There may be fewer tokens than asked for: the result says so.

    Args:
        files: the corpus, as `iter_records` reads it: `.txt` and `.md` with a text a line, `.jsonl` and others with a
            field `text`, each also as `.gz`; or a dataset, as `open_corpus` reads it. They are streamed.
        kind: one of `TOKENIZER_KINDS`.
        vocab_size: most tokens to make, special tokens included.
        output: the folder to write.
        cased: keep upper case and accents; `bpe` always does.
        min_frequency: least number of times that two pieces stand side by side to become one, by default 2; not for
            `unigram`, which weighs pieces against each other.
        columns: our field names to the files', see `iter_records`.
        force: replace the tokenizer folder that `output` is; anything else is refused.
        progress: called with the name of each stage.

    Raises `TrainingError`, `DataError` or, where sentencepiece is missing for `unigram`, `MissingExtraError`.
    """
    target = Path(output)
    _check_request(files, kind, vocab_size, min_frequency)
    _check_output(target, force=force)
    corpus = _Corpus([Path(each) for each in files], columns, progress)
    corpus.check()
    chosen = _KINDS[kind]
    special = [chosen.roles[role] for role in chosen.first]
    config = _config(chosen, special, cased=cased)
    with atomic_replace_dir(target) as folder:
        write_json(folder / "tokenizer_config.json", config)
        request = VocabularyRequest(
            texts=corpus,
            size=vocab_size,
            min_frequency=min_frequency or _MIN_FREQUENCY,
            special_tokens=special,
            settings=TokenizerSettings(folder, config, {}),
        )
        chosen.learn(request, folder)
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
    """`tokenizer_config.json`, as transformers has written it since 4.34."""
    flags = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {
        "tokenizer_class": kind.tokenizer_class,
        **kind.settings(cased),
        "model_max_length": _MAX_TOKENS,
        **{role: token.content for role, token in kind.roles.items()},
        "added_tokens_decoder": {
            str(number): {flag: getattr(token, flag) for flag in flags} for number, token in enumerate(special)
        },
    }


def _check_request(files: Sequence[str | Path], kind: str, vocab_size: int, min_frequency: int | None) -> None:
    if kind not in _KINDS:
        raise TrainingError(f"expected a kind of tokenizer of {', '.join(_KINDS)}, found {kind!r}")
    if not files:
        raise TrainingError("expected at least one file of texts, found none")
    if vocab_size < 1:
        raise TrainingError(f"expected a vocabulary size of at least 1, found {vocab_size}")
    if min_frequency is None:
        return
    if kind == "unigram":
        raise TrainingError("a least frequency is for wordpiece and bpe; unigram weighs pieces against each other")
    if min_frequency < 1:
        raise TrainingError(f"expected a least frequency of at least 1, found {min_frequency}")


def _check_output(target: Path, *, force: bool) -> None:
    """Refuses to lose what is at `target`: only a folder with nothing but a tokenizer in it is safe to replace."""
    if not target.exists():
        return
    names = {each.name for each in target.iterdir()} if target.is_dir() else None
    if names == set():
        return
    if names is None or "tokenizer.json" not in names or not names <= set(TOKENIZER_FILES):
        raise TrainingError(f"{target}: exists and is no tokenizer folder; choose another place")
    if not force:
        raise TrainingError(f"{target}: a tokenizer is already there; replace it with --force")
