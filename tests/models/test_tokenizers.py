"""Every family's tokenizer built from raw files, beside the one that transformers builds from the same files."""

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
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bert_models import CheckpointError
from bert_models.tokenizer_files import TOKENIZER_FILES, read_tokenizer
from bert_runtime.errors import MissingExtraError

FAMILIES = ("bert", "distilbert", "electra", "roberta", "albert", "xlm-roberta", "camembert")

# transformers 5 forgets that these masks swallow the space before them unless the checkpoint says so, as it does in
# `write_settings`; for ALBERT it forgets even then, so `nasty` leaves such texts out.
LSTRIP_MASK = {
    "roberta": "<mask>",
    "xlm-roberta": "<mask>",
    "camembert": "<mask>",
    "albert": "[MASK]",
}

TEXT = """
The parcel left our warehouse on Monday and the card was charged twice; please refund the second payment.
How do I close my account? Where can I see my invoices, and who may change the address on them?
I can't log in: "unknown user", it says - though I've used the same e-mail since 2014. (It worked yesterday!)
Les élèves étaient déjà arrivés à l'école quand la pluie a commencé; ça n'a rien changé, où qu'ils fussent.
Der Zug fährt um 07:45 Uhr ab, größere Gepäckstücke müssen vorher angemeldet werden. Schöne Grüße aus Köln!
Быстрая доставка по всей стране, возврат в течение 30 дней. Η παραγγελία σας έφτασε χθες το πρωί.
東京の天気は晴れです。 我想退货 但是找不到订单号。 오늘 날씨가 좋네요. مرحبا كيف حالك اليوم שלום מה שלומך
Call 555-0199 or write to help@example.com, see https://example.com/help?q=refund&lang=en#top for the rest.
The price rose from $3.50 to €4.20, that is 20% more than last year; shipping costs 1/2 of what it did.
a b c d e f g h i j k l m n o p q r s t u v w x y z A B C D E F G H I J K L M N O P Q R S T U V W X Y Z
0 1 2 3 4 5 6 7 8 9 . , ; : ! ? ' " ( ) [ ] { } < > / \\ | @ # $ % ^ & * - _ + = ~ `
""".strip().splitlines()

NASTY_PARTS = (
    *("", " ", "\t", "\n", "\r\n", "\x00", "\x07", "\x1b[0m", "\x7f", "\x85", "\xa0", "\xad", "\ufeff", "\ufffd"),
    *("\u200b", "\u200c", "\u200d", "\u2028", "\u2029", "\u202e", "\u2060", "\u3000", "\u1680", "\u180e", "\u2009"),
    *("e\u0301", "é", "ñ", "n\u0303", "Å", "A\u030a", "ẛ̣", "a\u0300\u0316\u0301b", "\u0301", "İ", "ı", "ß", "ẞ", "ŉ"),
    *("ﬁ", "ﷺ", "①", "½", "ｆｕｌｌ", "㎏", "™", "Ⅷ", "²", "ﾊﾝｶｸ", "ǆ", "K"),
    *("東京", "日本語テスト", "中文，测试。", "한국어", "각", "𠮷", "𠀀野家", "〆〤", "㐀", "ㄅㄆ"),
    *("🙂", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷🇩🇪", "👍🏽", "❤️", "☺", "🤷🏿‍♀️", "1️⃣"),
    *("שלום", "مرحبا", "مَرْحَبًا", "שָׁלוֹם", "नमस्ते", "สวัสดี", "ქართული", "Ελληνικά", "ΣΊΣΥΦΟΣ", "Привет"),
    *("[MASK]", "<mask>", "[CLS]", "[SEP]", "<s>", "</s>", "<unk>", "[UNK]", "<pad>", "[PAD]", "[ MASK ]", "[mask]"),
    *("a [MASK] b", "a <mask> b", "[MASK]<mask>", "x[MASK]y", "x<mask>y", " <mask> ", " [MASK] ", "<mask>.", "<MASK>"),
    *("x" * 99, "x" * 100, "x" * 101, "ab" * 300, "a-" * 120, "é" * 101, "東" * 120, "!" * 150, "1" * 130, "😀" * 110),
    *("3.14159", "1 000 000", "0x1F", "1e-9", "2014-01-02", "12:30", "(555) 010-0199", "v1.2.3", "5-6", "50%"),
    *(
        "https://example.com/a?b=c&d=%20#e",
        "user@example.com",
        "www.a-b.co.uk",
        "C:\\path\\file",
        "../x/y.z",
        "#tag @user",
    ),
    *("don't", "it's", "I'd've", "'tis", "rock'n'roll", "``quoted''", "“curly” ‘quotes’", "a…b", "—–-", "o’clock"),
    *("<br/>", "{'k': [1]}", "a_b_c", "CamelCase", "ALLCAPS", "$x^2$", "C++", "~", "`", "^^", "\\n", "%s%d"),
    *("Ġ", "Ċ", "##ing", "▁", "▁▁a", "a▁b", "Â", "ï»¿", "\ue000", "\U000e0001", "\U0010fffd", "̸", "a\x00b"),
)

CONTEXTS = ("{}", " {}  ", "word{}word", "One {}, two.", "{0} {0}")

NASTY = [context.format(part) for context in CONTEXTS for part in NASTY_PARTS if "{" not in part or context == "{}"]


def nasty(family: str) -> list[str]:
    """The nasty strings that transformers does not get wrong."""
    return [text for text in NASTY if family != "albert" or not re.search(r"\s\[MASK\]", text)]


def train_sentencepiece(path: Path, **options: Any) -> None:
    """A SentencePiece model of a few hundred pieces, trained as the family's own was, by default as XLM-R's."""
    settings: dict[str, Any] = {"vocab_size": 420, "model_type": "unigram", "hard_vocab_limit": False, **options}
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT * 3), model_writer=file, minloglevel=2, num_threads=1, **settings
        )


ALBERT_OPTIONS = {
    "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}  # fmt: skip


def train_bpe(folder: Path) -> None:
    """RoBERTa's two files: special tokens at its ids, then bytes and merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.model.save(str(folder))


def train_wordpiece(folder: Path) -> None:
    words = {word.strip(".,;:?!\"()'") for line in TEXT for word in line.split()}
    words |= {word.lower() for word in words}
    letters = sorted(
        {letter for line in [*TEXT, *NASTY] for letter in line if not letter.isspace() and ord(letter) > 32}
    )
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    tokens += sorted(word for word in words if len(word) > 1)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each family with the raw files of a toy tokenizer and the `config.json` that names the family."""
    root = tmp_path_factory.mktemp("tokenizers")
    for family in FAMILIES:
        (root / family).mkdir()
        (root / family / "config.json").write_text(json.dumps({"model_type": family}))
    for family in ("bert", "distilbert", "electra"):
        train_wordpiece(root / family)
    train_bpe(root / "roberta")
    train_sentencepiece(root / "albert" / "spiece.model", **ALBERT_OPTIONS)
    train_sentencepiece(root / "xlm-roberta" / "sentencepiece.bpe.model")
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


def write_settings(folder: Path, family: str, **values: Any) -> None:
    """`tokenizer_config.json`, and the mask as published checkpoints describe it."""
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    if family in LSTRIP_MASK:
        mask = {"content": LSTRIP_MASK[family], "lstrip": True, "rstrip": False, "single_word": False}
        (folder / "special_tokens_map.json").write_text(json.dumps({"mask_token": {**mask, "normalized": False}}))


def view(encoding: Any) -> dict[str, Any]:
    """All that a task or a model may read of an encoding."""
    return {
        "tokens": encoding.tokens,
        "ids": encoding.ids,
        "offsets": encoding.offsets,
        "word_ids": encoding.word_ids,
        "type_ids": encoding.type_ids,
        "sequence_ids": encoding.sequence_ids,
        "special": encoding.special_tokens_mask,
    }


def assert_same(folder: Path, family: str, texts: Sequence[str]) -> None:
    """Our tokenizer of `folder` and that of transformers encode every text, and every pair of neighbours, alike."""
    from transformers import AutoTokenizer

    ours, theirs = read_tokenizer(folder, family), AutoTokenizer.from_pretrained(folder)
    pairs = texts[1:] + texts[:1]
    for found, expected, text in zip(ours.encode_batch(texts), theirs(texts).encodings, texts, strict=True):
        assert view(found) == view(expected), text
    batch = ours.encode_batch(list(zip(texts, pairs, strict=True)))
    for found, expected, text in zip(batch, theirs(texts, pairs).encodings, texts, strict=True):
        assert view(found) == view(expected), text


def test_there_are_a_few_hundred_nasty_strings() -> None:
    assert len(set(NASTY)) > 500


@pytest.mark.parametrize("family", FAMILIES)
def test_nasty_strings_as_transformers(copy: Callable[[str], Path], family: str) -> None:
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
        ("roberta", {"add_prefix_space": True}),
        ("roberta", {"trim_offsets": False}),
        ("albert", {"do_lower_case": False}),
        ("albert", {"keep_accents": True}),
        ("albert", {"remove_space": False}),
        ("xlm-roberta", {"add_prefix_space": False}),
    ],
)
def test_settings_as_transformers(copy: Callable[[str], Path], family: str, settings: dict[str, Any]) -> None:
    folder = copy(family)
    write_settings(folder, family, **settings)
    assert_same(folder, family, nasty(family))


@pytest.mark.shared_data
@pytest.mark.parametrize("family", FAMILIES)
def test_real_sentences_as_transformers(
    copy: Callable[[str], Path], shared_data: Path, sentences: list[str], family: str
) -> None:
    folder = copy(family)
    write_settings(folder, family)
    if family == "roberta":
        shutil.copyfile(shared_data / "vocab/roberta-base/vocab.json", folder / "vocab.json")
        shutil.copyfile(shared_data / "vocab/gpt2/merges.txt", folder / "merges.txt")
    elif (folder / "vocab.txt").is_file():
        shutil.copyfile(shared_data / "vocab/bert-base-uncased/vocab.txt", folder / "vocab.txt")
    assert_same(folder, family, [*sentences, *nasty(family)])


@pytest.mark.shared_data
def test_cased_vocabulary_as_transformers(copy: Callable[[str], Path], shared_data: Path, sentences: list[str]) -> None:
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
    """Texts that SentencePiece alone reads as our pipelines do.

    It knows no special tokens. And two things are `tokenizers`' own, in transformers too: U+0085 is a space, and a
    letter with several accents is normalized as one.
    """
    return [text for text in texts if not re.search(r"[\[<]|\x85|a\u0300\u0316", text)]


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
@pytest.mark.parametrize(("family", "offset"), [("xlm-roberta", 1), ("camembert", 4)])
def test_ids_are_those_of_sentencepiece(copy: Callable[[str], Path], family: str, offset: int, algorithm: str) -> None:
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


def test_fairseq_numbering(trained: Path) -> None:
    roberta, camembert = (read_tokenizer(trained / family, family) for family in ("xlm-roberta", "camembert"))
    assert [roberta.id_to_token(i) for i in range(4)] == ["<s>", "<pad>", "</s>", "<unk>"]
    names = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]
    assert [camembert.id_to_token(i) for i in range(7)] == names
    assert camembert.encode("a", "b").ids[:1] + camembert.encode("a", "b").ids[-1:] == [5, 6]
    assert set(camembert.encode("a", "b").type_ids) == {0}


def test_albert_symbols_stay_inside_their_word(copy: Callable[[str], Path]) -> None:
    """ALBERT's model defines symbols such as "." and "-"; transformers 5 starts a new word after each."""
    folder = copy("albert")
    symbols = {**ALBERT_OPTIONS, "user_defined_symbols": ["(", ")", '"', "-", ".", "–", "£", "€"]}
    train_sentencepiece(folder / "spiece.model", **symbols)
    ours = read_tokenizer(folder, "albert")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    for text in ("the price is 3.50", "an e-mail (or two)", "a.b.c", "€4.20 -x", "hello."):
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text), text


def test_albert_splits_a_comma_from_its_number(copy: Callable[[str], Path]) -> None:
    folder = copy("albert")
    path = folder / "spiece.model"
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(path.read_bytes())
    for piece in ("▁2014,", "▁2014"):
        model.pieces.add(piece=piece, score=-1.0)
    path.write_bytes(model.SerializeToString())
    assert read_tokenizer(folder, "albert").encode("2014,", add_special_tokens=False).tokens[0] == "▁2014"


@pytest.mark.parametrize("family", LSTRIP_MASK)
def test_mask_takes_the_space_before_it(trained: Path, family: str) -> None:
    mask = LSTRIP_MASK[family]
    tokenizer = read_tokenizer(trained / family, family)
    found = tokenizer.encode(f"the {mask} is", add_special_tokens=False)
    place = found.ids.index(tokenizer.token_to_id(mask))
    assert found.offsets[place][1] == 4 + len(mask)
    assert tokenizer.id_to_token(found.ids[place - 1]) not in ("▁", "Ġ")


def test_special_tokens_by_other_names(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8")
    (folder / "vocab.txt").write_text(vocab.replace("[CLS]\n", "<begin>\n", 1).replace("[UNK]\n", "<huh>\n", 1))
    begin = {"content": "<begin>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    (folder / "special_tokens_map.json").write_text(json.dumps({"cls_token": begin, "unk_token": "<huh>"}))
    assert_same(folder, "bert", ["a card", "a <begin> of [CLS]", "\ue123 <huh>"])
    assert read_tokenizer(folder, "bert").encode("a").tokens == ["<begin>", "a", "[SEP]"]


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("layout", ["added_tokens.json", "added_tokens_decoder"])
def test_added_tokens_as_transformers(copy: Callable[[str], Path], family: str, layout: str) -> None:
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
def test_the_class_that_a_checkpoint_names_decides(copy: Callable[[str], Path], name: str) -> None:
    folder = copy("bert")
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta", "tokenizer_class": name}))
    assert read_tokenizer(folder, "roberta").encode("a").tokens == ["[CLS]", "a", "[SEP]"]


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_files_are_named(copy: Callable[[str], Path], family: str) -> None:
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
        ("bert", "vocab.txt", b"\xff\xfe", r"vocab\.txt: not a vocabulary"),
        ("bert", "vocab.txt", "a\nb\n", r"special tokens \[SEP\], \[CLS\], \[UNK\] in the vocabulary"),
        ("roberta", "vocab.json", "[]", r"vocab\.json and merges\.txt are no byte-level BPE"),
        ("roberta", "merges.txt", "a b c\n", r"vocab\.json and merges\.txt are no byte-level BPE"),
        ("albert", "spiece.model", "version https://git-lfs.github.com/spec/v1\n", "without LFS"),
        ("albert", "spiece.model", "", "expected a SentencePiece model"),
    ],
)
def test_damaged_files_are_named(
    copy: Callable[[str], Path], family: str, name: str, content: str | bytes, message: str
) -> None:
    folder = copy(family)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(CheckpointError, match=message):
        read_tokenizer(folder, family)


def test_missing_merges_are_named(copy: Callable[[str], Path]) -> None:
    folder = copy("roberta")
    (folder / "merges.txt").unlink()
    with pytest.raises(CheckpointError, match=r"vocab\.json and merges\.txt, found no merges\.txt"):
        read_tokenizer(folder, "roberta")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ALBERT_OPTIONS, "expected <unk>, <s>, </s> as its first pieces, found <pad>"),
        ({"model_type": "char"}, "unigram"),
    ],
)
def test_sentencepiece_models_that_do_not_fit(
    copy: Callable[[str], Path], options: dict[str, Any], message: str
) -> None:
    folder = copy("xlm-roberta")
    train_sentencepiece(folder / "sentencepiece.bpe.model", **options)
    with pytest.raises(CheckpointError, match=message):
        read_tokenizer(folder, "xlm-roberta")


def test_missing_sentencepiece_names_the_extra(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingExtraError, match=r"'sentencepiece'.*pip install 'bert-export\[export\]'"):
        read_tokenizer(trained / "albert", "albert")
