"""Every family's tokenizer built from vocabulary files, compared with the one of transformers from the same files."""

import csv
import gzip
import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from bert_models import CheckpointError
from bert_models.tokenizer_files import TOKENIZER_FILES, read_tokenizer
from bert_runtime.errors import MissingExtraError

from ..toy_tokenizers import (
    ALBERT_OPTIONS,
    FAMILIES,
    LSTRIP_MASK,
    MPNET_TOKENS,
    NASTY,
    TEXT,
    assert_same,
    nasty,
    train_bpe,
    train_sentencepiece,
    train_wordpiece,
    write_settings,
)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per family with the vocabulary files of a toy tokenizer and a `config.json` that names the family."""
    root = tmp_path_factory.mktemp("tokenizers")
    for family in FAMILIES:
        (root / family).mkdir()
        (root / family / "config.json").write_text(json.dumps({"model_type": family}))
    for family in ("bert", "distilbert", "electra", "ernie", "nomic_bert"):
        train_wordpiece(root / family)
    train_wordpiece(root / "mpnet", MPNET_TOKENS)
    train_bpe(root / "roberta")
    train_sentencepiece(root / "albert" / "spiece.model", **ALBERT_OPTIONS)
    for family in ("xlm-roberta", "gte"):
        train_sentencepiece(root / family / "sentencepiece.bpe.model")
    train_sentencepiece(root / "camembert" / "sentencepiece.bpe.model", vocab_size=380)
    return root


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies a family's folder, for a test to change."""
    return lambda family: Path(shutil.copytree(trained / family, tmp_path / family))


@pytest.fixture(scope="session")
def sentences(shared_data: Path) -> list[str]:
    """Real sentences: film reviews, encyclopedia, tweets, questions, comments, captions."""
    with (shared_data / "stsb/stsb-en-dev.csv").open(encoding="utf-8", newline="") as file:
        captions = [row[0] for row in csv.reader(file)]
    with gzip.open(shared_data / "wikitext2/valid.txt.gz", "rt", encoding="utf-8") as file:
        articles = [line.strip()[:400] for line in file if len(line) > 80]
    tweets = (shared_data / "wnut17/emerging.dev.conll").read_text(encoding="utf-8").split("\n\n")
    reviews = (shared_data / "sst2/dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    comments = (shared_data / "goemotions/dev.tsv").read_text(encoding="utf-8").splitlines()
    return [
        *captions[::25],
        *articles[:60],
        *(" ".join(line.split("\t")[0] for line in tweet.splitlines()) for tweet in tweets[:100]),
        *(line.rsplit("\t", 1)[0] for line in reviews[:100]),
        *(line.split("\t")[0] for line in comments[:150]),
    ]


def test_nasty_strings_are_several_hundred() -> None:
    assert len(set(NASTY)) > 500


@pytest.mark.parametrize("family", FAMILIES)
def test_nasty_strings_encode_like_transformers(copy: Callable[[str], Path], family: str) -> None:
    folder = copy(family)
    write_settings(folder, family)
    assert_same(folder, family, nasty(family))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bert", {"do_lower_case": False}),
        ("bert", {"strip_accents": False}),
        ("bert", {"do_lower_case": False, "strip_accents": True}),
        ("electra", {"tokenize_chinese_chars": False}),
        ("mpnet", {"do_lower_case": False}),
        ("mpnet", {"strip_accents": False}),
        ("roberta", {"add_prefix_space": True}),
        ("roberta", {"trim_offsets": False}),
        ("albert", {"do_lower_case": False}),
        ("albert", {"keep_accents": True}),
        ("albert", {"remove_space": False}),
        ("xlm-roberta", {"add_prefix_space": False}),
    ],
)
def test_settings_act_like_in_transformers(copy: Callable[[str], Path], family: str, settings: dict[str, Any]) -> None:
    folder = copy(family)
    write_settings(folder, family, **settings)
    assert_same(folder, family, nasty(family))


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}])
def test_gte_with_the_tokenizer_of_bert(copy: Callable[[str], Path], settings: dict[str, Any]) -> None:
    """English checkpoints of GTE have BERT's, whose settings apply to `tokenizer.json`, too."""
    folder = copy("bert")
    (folder / "config.json").write_text(json.dumps({"model_type": "gte"}))
    write_settings(folder, "bert", tokenizer_class="BertTokenizer", **settings)
    assert_same(folder, "gte", NASTY)
    read_tokenizer(copy("nomic_bert"), "nomic_bert").save(str(folder / "tokenizer.json"))
    assert_same(folder, "gte", NASTY)


@pytest.mark.shared_data
@pytest.mark.parametrize("family", FAMILIES)
def test_real_sentences_encode_like_transformers(
    copy: Callable[[str], Path], shared_data: Path, sentences: list[str], family: str
) -> None:
    folder = copy(family)
    write_settings(folder, family)
    if family == "roberta":
        shutil.copyfile(shared_data / "vocab/roberta-base/vocab.json", folder / "vocab.json")
        shutil.copyfile(shared_data / "vocab/gpt2/merges.txt", folder / "merges.txt")
    elif (folder / "vocab.txt").is_file():
        vocab = (shared_data / "vocab/bert-base-uncased/vocab.txt").read_text(encoding="utf-8")
        around = ("<s>\n<pad>\n</s>\n<unk>\n", "<mask>\n") if family == "mpnet" else ("", "")
        (folder / "vocab.txt").write_text(vocab.join(around), encoding="utf-8")
    assert_same(folder, family, [*sentences, *nasty(family)])


@pytest.mark.shared_data
def test_cased_vocabulary_encodes_like_transformers(
    copy: Callable[[str], Path], shared_data: Path, sentences: list[str]
) -> None:
    folder = copy("bert")
    write_settings(folder, "bert", do_lower_case=False)
    shutil.copyfile(shared_data / "vocab/bert-base-cased/vocab.txt", folder / "vocab.txt")
    assert_same(folder, "bert", [*sentences, *NASTY])


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_our_tokenizer_json(copy: Callable[[str], Path], family: str) -> None:
    folder = copy(family)
    read_tokenizer(folder, family).save(str(folder / "tokenizer.json"))
    assert_same(folder, family, NASTY)


def plain(texts: Sequence[str]) -> list[str]:
    """Return the texts that SentencePiece alone encodes like our pipelines.

    It has no special tokens. `tokenizers` differs from it in two more points, in transformers too: U+0085 is a space,
    and a letter with several accents is normalized as one.
    """
    return [text for text in texts if not re.search(r"[\[<]|\x85|a\u0300\u0316", text)]


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
@pytest.mark.parametrize(("family", "offset"), [("xlm-roberta", 1), ("camembert", 4)])
def test_ids_equal_those_of_sentencepiece(
    copy: Callable[[str], Path], family: str, offset: int, algorithm: str
) -> None:
    folder = copy(family)
    path = folder / "sentencepiece.bpe.model"
    train_sentencepiece(path, model_type=algorithm)
    ours, theirs = read_tokenizer(folder, family), sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = theirs.get_piece_size()
    assert ours.get_vocab_size() == pieces + offset + 1
    assert ours.token_to_id("<mask>") == pieces + offset
    for text in plain([*TEXT, *NASTY]):
        expected = [number + offset if number else 3 for number in theirs.encode(text)]
        assert ours.encode(text, add_special_tokens=False).ids == expected, text


def test_ids_follow_fairseq(trained: Path) -> None:
    roberta, camembert = (read_tokenizer(trained / family, family) for family in ("xlm-roberta", "camembert"))
    assert [roberta.id_to_token(i) for i in range(4)] == ["<s>", "<pad>", "</s>", "<unk>"]
    names = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]
    assert [camembert.id_to_token(i) for i in range(7)] == names
    assert camembert.encode("a", "b").ids[:1] + camembert.encode("a", "b").ids[-1:] == [5, 6]
    assert set(camembert.encode("a", "b").type_ids) == {0}


def test_albert_symbols_do_not_start_a_word(copy: Callable[[str], Path]) -> None:
    """ALBERT's model defines symbols such as "." and "-"; transformers 5 starts a new word after each."""
    folder = copy("albert")
    symbols = {**ALBERT_OPTIONS, "user_defined_symbols": ["(", ")", '"', "-", ".", "–", "£", "€"]}
    train_sentencepiece(folder / "spiece.model", **symbols)
    ours = read_tokenizer(folder, "albert")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    for text in ("the price is 3.50", "an e-mail (or two)", "a.b.c", "€4.20 -x", "hello."):
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text), text


def test_albert_splits_comma_from_number(copy: Callable[[str], Path]) -> None:
    folder = copy("albert")
    path = folder / "spiece.model"
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(path.read_bytes())
    for piece in ("▁2014,", "▁2014"):
        model.pieces.add(piece=piece, score=-1.0)
    path.write_bytes(model.SerializeToString())
    assert read_tokenizer(folder, "albert").encode("2014,", add_special_tokens=False).tokens[0] == "▁2014"


@pytest.mark.parametrize("family", LSTRIP_MASK)
def test_mask_consumes_the_space_before_it(trained: Path, family: str) -> None:
    mask = LSTRIP_MASK[family]
    tokenizer = read_tokenizer(trained / family, family)
    found = tokenizer.encode(f"the {mask} is", add_special_tokens=False)
    index = found.ids.index(tokenizer.token_to_id(mask))
    assert found.offsets[index][1] == 4 + len(mask)
    assert tokenizer.id_to_token(found.ids[index - 1]) not in ("▁", "Ġ")


def test_checkpoint_overrides_special_tokens(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8")
    (folder / "vocab.txt").write_text(vocab.replace("[CLS]\n", "<begin>\n", 1).replace("[UNK]\n", "<huh>\n", 1))
    begin = {"content": "<begin>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    (folder / "special_tokens_map.json").write_text(json.dumps({"cls_token": begin, "unk_token": "<huh>"}))
    assert_same(folder, "bert", ["a card", "a <begin> of [CLS]", "\ue123 <huh>"])
    assert read_tokenizer(folder, "bert").encode("a").tokens == ["<begin>", "a", "[SEP]"]


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("layout", ["added_tokens.json", "added_tokens_decoder"])
def test_added_tokens_encode_like_transformers(copy: Callable[[str], Path], family: str, layout: str) -> None:
    folder = copy(family)
    size = read_tokenizer(folder, family).get_vocab_size()
    write_settings(folder, family, additional_special_tokens=["[E1]"])
    if layout == "added_tokens.json":
        (folder / layout).write_text(json.dumps({"[E1]": size, "new word": size + 1}))
    else:
        (folder / "special_tokens_map.json").unlink(missing_ok=True)
        decoder = {
            str(size): {"content": "[E1]", "special": True, "normalized": False, "lstrip": False},
            str(size + 1): {"content": "new word", "special": False, "normalized": True, "lstrip": True},
        }
        if family in LSTRIP_MASK:
            number = read_tokenizer(folder, family).token_to_id("<mask>")
            decoder[str(number)] = {"content": "<mask>", "special": True, "lstrip": True, "normalized": False}
        (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    texts = ["[E1] a new word [E1]", "A NEW WORD, new words", "x[E1]y", "a <mask> b"]
    assert_same(folder, family, texts)
    assert size in read_tokenizer(folder, family).encode(texts[0]).ids


@pytest.mark.parametrize("name", ["BertTokenizer", "BertTokenizerFast"])
def test_tokenizer_class_takes_precedence_over_the_family(copy: Callable[[str], Path], name: str) -> None:
    folder = copy("bert")
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta", "tokenizer_class": name}))
    assert read_tokenizer(folder, "roberta").encode("a").tokens == ["[CLS]", "a", "[SEP]"]


@pytest.mark.parametrize("family", FAMILIES)
def test_error_names_missing_files(copy: Callable[[str], Path], family: str) -> None:
    folder = copy(family)
    for path in folder.iterdir():
        if path.name in TOKENIZER_FILES:
            path.unlink()
    with pytest.raises(CheckpointError, match=r"expected a tokenizer in tokenizer\.json or \S+.*, found neither; copy"):
        read_tokenizer(folder, family)


@pytest.mark.parametrize(
    ("family", "name", "content", "message"),
    [
        ("bert", "tokenizer_config.json", '{"tokenizer_class": "BertJapaneseTokenizer"}', "found 'BertJapaneseToken"),
        ("bert", "tokenizer_config.json", '{"do_lower_case": "no"}', "expected do_lower_case to be true or false"),
        ("bert", "tokenizer_config.json", '{"cls_token": 5}', "expected a special token .*, found 5"),
        ("bert", "tokenizer_config.json", '{"cls_token": "<s>"}', "special tokens <s> in the vocabulary, found none"),
        ("bert", "tokenizer_config.json", '{"added_tokens_decoder": {"x": "y"}}', "added tokens with their ids"),
        ("bert", "added_tokens.json", '{"[E1]": 1000000}', r"'\[E1\]' \(expected id 1000000, found \d+\)"),
        ("bert", "vocab.txt", b"\xff\xfe", r"vocab\.txt: expected a vocabulary"),
        ("bert", "vocab.txt", "a\nb\n", r"special tokens \[SEP\], \[CLS\], \[UNK\] in the vocabulary"),
        ("roberta", "vocab.json", "[]", r"expected a byte-level BPE in vocab\.json and merges\.txt"),
        ("roberta", "merges.txt", "a b c\n", r"expected a byte-level BPE in vocab\.json and merges\.txt"),
        ("albert", "spiece.model", "version https://git-lfs.github.com/spec/v1\n", "without LFS"),
        ("albert", "spiece.model", "", "expected a SentencePiece model"),
    ],
)
def test_error_names_damaged_file(
    copy: Callable[[str], Path], family: str, name: str, content: str | bytes, message: str
) -> None:
    folder = copy(family)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(CheckpointError, match=message):
        read_tokenizer(folder, family)


def test_error_names_missing_merges(copy: Callable[[str], Path]) -> None:
    folder = copy("roberta")
    (folder / "merges.txt").unlink()
    with pytest.raises(CheckpointError, match=r"vocab\.json and merges\.txt, found no merges\.txt"):
        read_tokenizer(folder, "roberta")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ALBERT_OPTIONS, "expected <unk>, <s>, </s> as the first pieces, found <pad>"),
        ({"model_type": "char"}, "unigram"),
    ],
)
def test_unsupported_sentencepiece_model_is_refused(
    copy: Callable[[str], Path], options: dict[str, Any], message: str
) -> None:
    folder = copy("xlm-roberta")
    train_sentencepiece(folder / "sentencepiece.bpe.model", **options)
    with pytest.raises(CheckpointError, match=message):
        read_tokenizer(folder, "xlm-roberta")


def test_missing_sentencepiece_error_names_the_extra(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingExtraError, match=r"'sentencepiece'.*pip install .*\[export\]'"):
        read_tokenizer(trained / "albert", "albert")
