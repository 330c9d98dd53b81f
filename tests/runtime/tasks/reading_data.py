"""Tasks, texts and tokenizers for the tests of question-answering."""

import gzip
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer

from bert_runtime.tasks import QuestionAnswering

SPANS = QuestionAnswering()


OR_NONE = QuestionAnswering(no_answer=True)


WORDS = ("the", "train", "zebra", "bank", "of", "Köln", "東京", "is", "😀", "late", ",", "xyz", "(rain)", "e\u0301t")


def words_of(num_words: int, seed: int) -> str:
    generator = random.Random(f"{num_words} {seed}")
    return " ".join(generator.choice(WORDS) for _ in range(num_words))


def paragraphs(shared_data: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """Read the contexts of SQuAD 1.1 with their questions."""
    with gzip.open(shared_data / "squad_v1.1" / "dev-articles.json.gz", "rt", encoding="utf-8") as stream:
        articles = json.load(stream)["data"]
    return [(paragraph["context"], paragraph["qas"]) for article in articles for paragraph in article["paragraphs"]]


@cache
def real_tokenizer(vocab: Path, name: str) -> Tokenizer:
    """Return a Rust tokenizer, created once; tests that set truncation use a copy."""
    if name == "roberta-base":
        files = str(vocab / name / "vocab.json"), str(vocab / "gpt2" / "merges.txt")
        return transformers.RobertaTokenizer(*files)._tokenizer
    lower = name.endswith("uncased")
    return transformers.BertTokenizer(str(vocab / name / "vocab.txt"), do_lower_case=lower)._tokenizer


VOCABULARIES = ["bert-base-uncased", "bert-base-cased", "roberta-base"]
