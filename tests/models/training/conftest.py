"""The files that runs of several processes train on."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bert_models import EncoderConfig, TaskModel, save_model
from bert_models.tokenizer_files import read_tokenizer
from bert_runtime.tasks import TextClassification

_TEXT = "my card is lost at the bank please help good morning where is your train it was late see you later"


def _sentence(words: int, draw: random.Random) -> str:
    return " ".join(draw.choices(_TEXT.split(), k=words))


@pytest.fixture(scope="module")
def data_folder(toy_config: EncoderConfig, toy_vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base without dropout, and files of 45 and 13 examples, which two processes cannot halve."""
    folder, draw = tmp_path_factory.mktemp("distributed"), random.Random(0)
    torch.manual_seed(0)
    model = TaskModel(
        replace(toy_config, hidden_dropout=0.0, attention_dropout=0.0), TextClassification(labels=("x", "y", "z"))
    )
    (folder / "base").mkdir()
    save_model(model, folder / "base", tokenizer_from=toy_vocab)
    (folder / "tokenizer").mkdir()
    read_tokenizer(toy_vocab, "bert").save(str(folder / "tokenizer" / "tokenizer.json"))
    for name, count in (("train", 45), ("dev", 13)):
        rows = [f"{_sentence(draw.randint(2, 14), draw)},{draw.choice('xyz')}\n" for _ in range(count)]
        (folder / f"{name}.csv").write_text("text,label\n" + "".join(rows))
        texts = [_sentence(draw.randint(1, 14), draw).split() for _ in range(count)]
        tagged = ["".join(f"{word} {draw.choice(['O', 'B-a', 'I-a'])}\n" for word in text) for text in texts]
        (folder / f"{name}.conll").write_text("\n".join(tagged))
    documents = ["\n".join(_sentence(draw.randint(3, 9), draw) for _ in range(6)) for _ in range(60)]
    (folder / "corpus.txt").write_text("\n\n".join(documents))
    return folder
