"""Trained tokenizers, compared with those that transformers loads from the same folder."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from bert_models.tokenizer_files import TOKENIZER_FILES, TOKENIZER_KINDS, read_tokenizer, train_tokenizer

from ..toy_tokenizers import NASTY, TEXT, assert_same, write_corpus

SIZE = 500
FAMILIES = {"wordpiece": "bert", "bpe": "roberta", "unigram": "albert"}
SPECIAL = {
    "wordpiece": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "bpe": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "unigram": ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"],
}
VOCABULARY = {"wordpiece": ["vocab.txt"], "bpe": ["merges.txt", "vocab.json"], "unigram": ["spiece.model"]}

kinds = pytest.mark.parametrize("kind", TOKENIZER_KINDS)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of questions to a bank and of lines in several scripts."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.txt")


@dataclass
class Trained:
    folder: Path
    family: str

    @property
    def tokenizer(self) -> Tokenizer:
        return read_tokenizer(self.folder, self.family)


@pytest.fixture(scope="session")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """Returns a tokenizer of a kind, cased or not, trained once per session."""
    made: dict[Any, Trained] = {}

    def get(kind: str, *, cased: bool = False) -> Trained:
        if (kind, cased) not in made:
            folder = tmp_path_factory.mktemp("trained") / kind
            train_tokenizer([corpus], kind, SIZE, folder, cased=cased)
            made[kind, cased] = Trained(folder, FAMILIES[kind])
        return made[kind, cased]

    return get


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@kinds
@pytest.mark.parametrize("cased", [False, True])
def test_trained_tokenizer_encodes_like_transformers(trained: Callable[..., Trained], kind: str, cased: bool) -> None:
    made = trained(kind, cased=cased)
    assert_same(made.folder, made.family, [*TEXT, *NASTY])


@kinds
def test_vocabulary_files_build_the_same_tokenizer(trained: Callable[..., Trained], tmp_path: Path, kind: str) -> None:
    made = trained(kind)
    for name in ("tokenizer_config.json", *VOCABULARY[kind]):
        (tmp_path / name).write_bytes((made.folder / name).read_bytes())
    built = read_tokenizer(tmp_path, made.family)
    assert json.loads(built.to_str()) == json.loads((made.folder / "tokenizer.json").read_text(encoding="utf-8"))


@kinds
def test_output_folder_has_files_and_ids_that_transformers_expects(trained: Callable[..., Trained], kind: str) -> None:
    from transformers import AutoTokenizer

    made = trained(kind)
    assert sorted(contents(made.folder)) == sorted(["tokenizer.json", "tokenizer_config.json", *VOCABULARY[kind]])
    assert set(contents(made.folder)) <= set(TOKENIZER_FILES)
    theirs = AutoTokenizer.from_pretrained(made.folder)
    assert type(theirs).__name__ == f"{made.family.capitalize()}Tokenizer"
    assert theirs.model_max_length == 512
    assert [theirs.convert_ids_to_tokens(number) for number in range(5)] == SPECIAL[kind]
    roles = ("pad_token_id", "unk_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
    expected = [1, 3, 0, 2, 4] if kind == "bpe" else [0, 1, 2, 3, 4]
    assert [getattr(theirs, role) for role in roles] == expected


@kinds
def test_vocabulary_has_the_requested_size(corpus: Path, tmp_path: Path, kind: str) -> None:
    made = train_tokenizer([corpus], kind, SIZE, tmp_path / "out")
    tokenizer = read_tokenizer(tmp_path / "out", FAMILIES[kind])
    assert made.vocab_size == made.requested_vocab_size == tokenizer.get_vocab_size() == SIZE
    assert made.special_tokens == {token: number for number, token in enumerate(SPECIAL[kind])}
    assert (made.kind, made.family, made.texts) == (
        kind,
        FAMILIES[kind],
        len(corpus.read_text(encoding="utf-8").splitlines()),
    )
    assert sorted(tokenizer.get_vocab().values()) == list(range(SIZE))


@kinds
def test_result_reports_a_smaller_vocabulary_than_requested(tmp_path: Path, kind: str) -> None:
    (tmp_path / "small.txt").write_text("a card, a cart\nthe card and the cart\n")
    made = train_tokenizer([tmp_path / "small.txt"], kind, 5000, tmp_path / "out")
    assert made.requested_vocab_size == 5000
    assert made.vocab_size == read_tokenizer(tmp_path / "out", made.family).get_vocab_size() < 400


@kinds
def test_pairs_get_special_tokens_and_segments(trained: Callable[..., Trained], kind: str) -> None:
    tokenizer = trained(kind).tokenizer
    start, end = ("<s>", "</s>") if kind == "bpe" else ("[CLS]", "[SEP]")
    one, pair = tokenizer.encode("the card"), tokenizer.encode("the card", "the payment")
    card, payment = (tokenizer.encode(text, add_special_tokens=False).tokens for text in ("the card", "the payment"))
    between = [end, end] if kind == "bpe" else [end]
    assert one.tokens == [start, *card, end]
    assert pair.tokens == [start, *card, *between, *payment, end]
    second = 0 if kind == "bpe" else 1
    assert pair.type_ids == [0] * (1 + len(card) + len(between)) + [second] * (len(payment) + 1)
    mask = "<mask>" if kind == "bpe" else "[MASK]"
    masked = tokenizer.encode(f"the {mask}", add_special_tokens=False)
    assert masked.ids == [*tokenizer.encode("the", add_special_tokens=False).ids, tokenizer.token_to_id(mask)]


def test_byte_level_bpe_decodes_exactly(trained: Callable[..., Trained]) -> None:
    tokenizer = trained("bpe").tokenizer
    plain = [text for text in [*TEXT, *NASTY] if not any(token in text for token in SPECIAL["bpe"])]
    for text in plain:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
@pytest.mark.parametrize("cased", [False, True])
def test_sentences_survive_encoding_and_decoding(trained: Callable[..., Trained], kind: str, cased: bool) -> None:
    tokenizer = trained(kind, cased=cased).tokenizer
    for text in ("How do I close my account?", "Schöne Grüße, please refund the parcel.", "It rose to $3.50 (again)"):
        found = tokenizer.decode(tokenizer.encode(text).ids)
        expected = text if cased else text.lower().replace("ö", "o").replace("ü", "u")
        # WordPiece does not keep where punctuation had a space.
        assert (found.replace(" ", "") == expected.replace(" ", "")) if kind == "wordpiece" else (found == expected)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_cased_keeps_case_and_accents(trained: Callable[..., Trained], kind: str) -> None:
    lower, cased = trained(kind).tokenizer, trained(kind, cased=True).tokenizer
    assert lower.encode("Élèves").ids == lower.encode("eleves").ids
    assert cased.encode("Élèves").ids != cased.encode("eleves").ids


@kinds
def test_corpus_has_no_unknown_characters(trained: Callable[..., Trained], kind: str) -> None:
    tokenizer = trained(kind).tokenizer
    unknown = tokenizer.token_to_id("[UNK]" if kind == "wordpiece" else "<unk>")
    assert not [text for text in TEXT if unknown in tokenizer.encode(text).ids]


TRAIN_ALL_KINDS = """
import sys
from bert_models.tokenizer_files import train_tokenizer
for kind in ("wordpiece", "bpe", "unigram"):
    train_tokenizer([sys.argv[1]], kind, int(sys.argv[2]), sys.argv[3] + "/" + kind)
"""


def test_training_is_reproducible_across_processes(
    trained: Callable[..., Trained], corpus: Path, tmp_path: Path
) -> None:
    """The libraries' hash tables are ordered differently in every process."""
    command = [sys.executable, "-c", TRAIN_ALL_KINDS, str(corpus), str(SIZE), str(tmp_path)]
    subprocess.run(command, check=True, timeout=120)
    for kind in TOKENIZER_KINDS:
        assert contents(tmp_path / kind) == contents(trained(kind).folder), kind


@kinds
def test_split_over_files_of_every_format_the_corpus_trains_the_same_tokenizer(
    corpus: Path, tmp_path: Path, kind: str
) -> None:
    lines = corpus.read_text(encoding="utf-8").splitlines()
    (tmp_path / "a.txt").write_text("\n".join(lines[:10]) + "\n\n", encoding="utf-8")
    with gzip.open(tmp_path / "b.txt.gz", "wt", encoding="utf-8") as stream:
        stream.write("\r\n".join(lines[10:20]))
    rows = "".join(json.dumps({"text": line}) + "\n" for line in lines[20:25])
    (tmp_path / "c.jsonl").write_text(rows)
    with gzip.open(tmp_path / "d.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.write("".join(json.dumps({"text": line, "id": 1}) + "\n" for line in lines[25:]))
    names = ["a.txt", "b.txt.gz", "c.jsonl", "d.jsonl.gz"]
    stages: list[str] = []
    parts = train_tokenizer([tmp_path / name for name in names], kind, SIZE, tmp_path / "parts", progress=stages.append)
    whole = train_tokenizer([corpus], kind, SIZE, tmp_path / "whole")
    assert parts == whole
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert stages[:5] == [*(f"reading {tmp_path / name}" for name in names), f"read {whole.texts} texts"]


def test_higher_min_frequency_gives_a_smaller_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("note,label\nthe card,a\nthe cart,b\n")
    sizes = [
        train_tokenizer(
            [tmp_path / "data.csv"], "wordpiece", 900, tmp_path / str(min_frequency),
            min_frequency=min_frequency, columns={"text": "note"},
        ).vocab_size
        for min_frequency in (1, 2, 3)
    ]  # fmt: skip
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.shared_data
@kinds
def test_tokenizer_of_books_generalizes_to_other_pages(shared_data: Path, tmp_path: Path, kind: str) -> None:
    """8,000 tokens of 3 MB of novels encode other pages in few tokens and with hardly any unknown ones."""
    with gzip.open(shared_data / "books/books.md.gz", "rt", encoding="utf-8") as stream:
        lines = stream.read(3_500_000).splitlines()
    other = [line for line in lines[-400:] if line.strip()]
    (tmp_path / "books.txt").write_text("\n".join(lines[:-1000]), encoding="utf-8")
    made = train_tokenizer([tmp_path / "books.txt"], kind, 8000, tmp_path / "out")
    assert made.vocab_size == 8000
    tokenizer = read_tokenizer(tmp_path / "out", made.family)
    ids = [number for found in tokenizer.encode_batch(other, add_special_tokens=False) for number in found.ids]
    unknown = tokenizer.token_to_id("[UNK]" if kind == "wordpiece" else "<unk>")
    assert ids.count(unknown) < 0.01 * len(ids)
    assert sum(map(len, other)) > 3.5 * len(ids)
    assert_same(tmp_path / "out", made.family, [*other[:100], *NASTY])


def test_dataset_and_markdown_train_the_same_tokenizer_as_text(corpus: Path, tmp_path: Path) -> None:
    lines = corpus.read_text(encoding="utf-8").splitlines()
    markdown, dataset = tmp_path / "corpus.md", tmp_path / "dataset"
    markdown.write_text("\n".join(lines), encoding="utf-8")
    dataset.mkdir()
    rows = (json.dumps({"body": line}) for line in lines)
    (dataset / "train.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    made = []
    for source in (corpus, markdown, dataset):
        output = tmp_path / f"from-{source.name}"
        train_tokenizer([source], "wordpiece", SIZE, output, columns={"text": "body"})
        made.append(contents(output))
    assert made[0] == made[1] == made[2]
