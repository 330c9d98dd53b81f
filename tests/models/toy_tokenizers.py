"""Toy vocabularies trained on a few lines, strings that break tokenizers, and a comparison with transformers."""

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bert_models.tokenizer_files import read_tokenizer

FAMILIES = (
    "bert",
    "distilbert",
    "electra",
    "roberta",
    "albert",
    "xlm-roberta",
    "camembert",
    "mpnet",
    "ernie",
    "nomic_bert",
    "gte",
)

# Masks that consume the space before them. transformers 5 omits this unless the checkpoint sets it, as `write_settings`
# does; for ALBERT it omits it even then, so `nasty` skips such texts.
LSTRIP_MASK = {
    "roberta": "<mask>",
    "xlm-roberta": "<mask>",
    "camembert": "<mask>",
    "mpnet": "<mask>",
    "gte": "<mask>",
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
    """Return the nasty strings that transformers encodes correctly."""
    return [text for text in NASTY if family != "albert" or not re.search(r"\s\[MASK\]", text)]


def write_corpus(path: Path) -> Path:
    """Write a few hundred questions to a bank, and lines in several scripts."""
    rows = files("bert_bench").joinpath("data/support_intents/train.jsonl").read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*TEXT, *(json.loads(row)["text"] for row in rows)]) + "\n", encoding="utf-8")
    return path


def train_sentencepiece(path: Path, **options: Any) -> None:
    """Train a SentencePiece model of a few hundred pieces, by default with XLM-R's settings."""
    settings: dict[str, Any] = {"vocab_size": 420, "model_type": "unigram", "hard_vocab_limit": False, **options}
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT * 3), model_writer=file, minloglevel=2, num_threads=1, **settings
        )


ALBERT_OPTIONS = {
    "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}  # fmt: skip


def train_bpe(folder: Path) -> None:
    """Write RoBERTa's two files: special tokens with its ids, then bytes and merges."""
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


BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MPNET_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<mask>")
"""MPNet's vocabulary is BERT's with four tokens before it and one after."""


def train_wordpiece(folder: Path, special: Sequence[str] = BERT_TOKENS) -> None:
    words = {word.strip(".,;:?!\"()'") for line in TEXT for word in line.split()}
    words |= {word.lower() for word in words}
    letters = sorted(
        {letter for line in [*TEXT, *NASTY] for letter in line if not letter.isspace() and ord(letter) > 32}
    )
    tokens = [*special, *letters, *(f"##{letter}" for letter in letters)]
    tokens += sorted(word for word in words if len(word) > 1)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")


def write_settings(folder: Path, family: str, **values: Any) -> None:
    """Write `tokenizer_config.json`, and the mask as in published checkpoints."""
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    if family in LSTRIP_MASK:
        mask = {"content": LSTRIP_MASK[family], "lstrip": True, "rstrip": False, "single_word": False}
        (folder / "special_tokens_map.json").write_text(json.dumps({"mask_token": {**mask, "normalized": False}}))


def view(encoding: Any) -> dict[str, Any]:
    """Return everything that a task or a model may read of an encoding."""
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
    """Assert that our tokenizer of `folder` and that of transformers encode all texts and pairs of neighbours alike."""
    from transformers import AutoTokenizer

    ours, theirs = read_tokenizer(folder, family), AutoTokenizer.from_pretrained(folder)
    pairs = texts[1:] + texts[:1]
    for found, expected, text in zip(ours.encode_batch(texts), theirs(texts).encodings, texts, strict=True):
        assert view(found) == view(expected), text
    batch = ours.encode_batch(list(zip(texts, pairs, strict=True)))
    for found, expected, text in zip(batch, theirs(texts, pairs).encodings, texts, strict=True):
        assert view(found) == view(expected), text
