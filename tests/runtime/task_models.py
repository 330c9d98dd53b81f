"""Models for the tests of tasks: random checkpoints of transformers' classes, and random outputs instead of a graph."""

import csv
import random
import zlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bert_models.tokenizer_files import read_tokenizer
from bert_runtime import Model, load
from bert_runtime.runner import Runner
from bert_runtime.tasks import Task
from bert_runtime.tokenization import Batch, TextTokenizer

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")

NASTY = (
    *("", " ", "\t\n", ".", "a", "\x00\x07"),
    "Zoë Müller naïvely visited São Paulo, Kraków & Reykjavík.",
    "東京で田中さんがGoogleに会った。 안녕하세요 Привет مرحبا שלום",
    "I ❤️ NYC 😀😀 👩‍👩‍👧 #love 🧿 ☃ ⸮ ꙮ",
    "see https://www.example.com/a/very/long/path?with=query&and=more#fragment_of-it now",
    f"{'x' * 99} {'y' * 100} {'z' * 101} {'é' * 130} end",
    "the e\u0301te\u0301 at the cafe\u0301 was N\u0303a\u0303o\u0301 nice",
    "zero\u200bwidth soft\u00adhyphen no\u00a0break",
    "[MASK] [SEP] [UNK] in a text [CLS], [mask]",
    "ß STRASSE İstanbul ǅ ﬁ ligature ＦＵＬＬ　ｗｉｄｔｈ",
    "line\r\nbreak\u2028and\x00null\x07bell",
    "don't can't U.S.A. 3.14 10,000 $5 50% a-b_c/d (it's)",
)
"""Texts that often break tokenizers, all short enough for one window."""


class RandomRunner:
    """A runner with random outputs per token [B, S, …], and NaN at padding.

    A token's output depends on all ids of its sequence and on nothing else: windows differ, batches do not.
    """

    threads = 1
    device_name = "random"

    def __init__(self, *width: int) -> None:
        self.width = width

    def values(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the outputs of one sequence without padding [length, …]."""
        generator = np.random.default_rng(zlib.crc32(np.array(ids, dtype=np.int64).tobytes()))
        return (3 * generator.standard_normal((len(ids), *self.width))).astype(np.float32)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        outputs = np.full((*batch.input_ids.shape, *self.width), np.nan, dtype=np.float32)
        for output, ids, length in zip(outputs, batch.input_ids, batch.attention_mask.sum(axis=1), strict=True):
            output[:length] = self.values(ids[:length])
        return outputs


def random_model(task: Task, vocab: Path, max_tokens: int, *width: int) -> Model:
    """Return a model of `task` with random outputs and the WordPiece vocabulary in the folder `vocab`."""
    return with_runner(RandomRunner(*width), task, wordpiece(vocab), max_tokens)


def with_runner(runner: Runner, task: Task, tokenizer: Tokenizer, max_tokens: int) -> Model:
    """Return a model of `max_tokens` that runs `runner`, with a copy of the tokenizer."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    return Model(task, TextTokenizer(copy, max_tokens, pad_id(copy), task.windows), runner)


def wordpiece(vocab: Path) -> Tokenizer:
    """Return the tokenizer of a folder with `vocab.txt`, without truncation and padding."""
    return read_tokenizer(vocab, "bert")


def pad_id(tokenizer: Tokenizer) -> int:
    found = tokenizer.token_to_id("[PAD]")
    return tokenizer.token_to_id("<pad>") if found is None else found


def reference(name: str, tokenizer: Any, **changes: Any) -> Any:
    """Return a random toy-size model of the transformers class `name`, whose outputs differ from token to token."""
    model_class = getattr(transformers, name)
    sizes: dict[str, Any] = {
        "vocab_size": max(tokenizer.get_vocab().values()) + 1,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**sizes | changes)).eval()
    with torch.no_grad():
        model.base_model.embeddings.word_embeddings.weight.mul_(5)
        for parameter in model.parameters():
            if parameter.ndim == 1:  # so that no bias or LayerNorm is the identity
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def labelled(labels: Sequence[str] = LABELS) -> dict[str, Any]:
    """Return the keys of a configuration that name the labels."""
    return {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}


def exported(model: Any, tokenizer: Any, folder: Path) -> Model:
    """Save a transformers model and its tokenizer, export them in FP32, and load the bundle."""
    from bert_export import export

    model.save_pretrained(folder / "checkpoint")
    tokenizer.save_pretrained(folder / "checkpoint")
    export(folder / "checkpoint", folder / "bundle", precisions=["fp32"])
    return load(folder / "bundle", threads=1)


def text_of(length: int, seed: int = 0) -> str:
    """Return a text of `length` tokens, in words of one to four tokens."""
    generator = random.Random(f"{length} {seed}")
    words: list[str] = []
    while (left := length - sum(map(len, words))) > 0:
        words.append("".join(generator.choice("xyzqjk") for _ in range(min(left, generator.randint(1, 4)))))
    return " ".join(words)


def check_agreement(model: Model, texts: Sequence[Any]) -> None:
    """Assert that each text gives the same result alone, in a list, in a shuffled list and streamed.

    Results must be lists of objects with a score.
    """
    single = [model(text).to_dict() for text in texts]
    # Sums in another order differ in their last digits.
    expected = [[{**item, "score": pytest.approx(item["score"], abs=1e-4)} for item in items] for items in single]
    assert [result.to_dict() for result in model(texts)] == expected
    assert [result.to_dict() for result in model.stream(iter(texts))] == expected
    order = random.Random(0).sample(range(len(texts)), len(texts))
    assert [result.to_dict() for result in model([texts[i] for i in order])] == [expected[i] for i in order]


def wnut(shared_data: Path, count: int = 200) -> list[str]:
    """Return sentences of WNUT-17's development set."""
    blocks = (shared_data / "wnut17" / "emerging.dev.conll").read_text(encoding="utf-8").split("\n\n")
    sentences = (" ".join(line.split("\t")[0] for line in block.strip().splitlines()) for block in blocks)
    return list(islice(filter(None, sentences), count))


def stsb(shared_data: Path, count: int = 60) -> list[str]:
    """Return sentences of the development set of the STS benchmark."""
    with (shared_data / "stsb" / "stsb-en-dev.csv").open(encoding="utf-8", newline="") as stream:
        return [row[0] for row in islice(csv.reader(stream), count)]
