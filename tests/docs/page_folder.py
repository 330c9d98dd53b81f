"""The folder that a page's code blocks run in: toy checkpoints and bundles, and a few rows of data."""

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import torch

from bert_models import EncoderConfig, TaskModel, save_model
from bert_runtime.tasks import (
    QuestionAnswering,
    SentenceEmbedding,
    SparseEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

from ..made_once import made_once

_BASE = "all-MiniLM-L6-v2"
_CITIES = {"train": ("Paris", "New York", "Rome", "Oslo"), "dev": ("Bern", "Paris")}
_LINES = ("my card is gone", "where is my money", "is my card lost")

BUNDLES = {
    "minilm": _BASE,
    "intents-bundle": "intents",
    "entities-bundle": "entities",
    "qa-bundle": "answers",
    "nli-bundle": "inference",
    "sparse-bundle": "splade",
}
"""The standard bundles and the checkpoints that they are made of, for pages that say `setup: bundle NAME` and
`setup: checkpoint NAME`."""


def write_data(folder: Path) -> None:
    """Write the data files that pages name: labelled rows of every task, and plain texts."""
    intents = {name: _intents(name) for name in _CITIES}
    for name, cities in _CITIES.items():
        rows = [json.loads(line) for line in intents[name]]
        contents = {
            f"{name}.jsonl": "".join(f"{line}\n" for line in intents[name]),
            f"{name}.csv": _csv(rows),
            f"{name}.conll": "\n".join(map(_conll_sentence, cities)),
            f"{name}-squad.json": _squad(cities),
        }
        for file, text in contents.items():
            (folder / file).write_text(text, encoding="utf-8")
    (folder / "messages.txt").write_text("".join(f"{line}\n" for line in _LINES[:2]), encoding="utf-8")
    (folder / "corpus.txt").write_text("".join(f"{line}\n" for line in _LINES), encoding="utf-8")


def _intents(name: str) -> list[str]:
    """Return 60 rows of the demo's data set, as JSONL."""
    path = files("bert_bench").joinpath(f"data/support_intents/{name}.jsonl")
    return path.read_text(encoding="utf-8").splitlines()[:60]


def _csv(rows: Iterable[Mapping[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["text", "label"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _conll_sentence(city: str) -> str:
    """Return a sentence with a tagged city in CoNLL format."""
    first, *more = city.split()
    words = [("refund", "O"), ("to", "O"), (first, "B-city"), *((word, "I-city") for word in more), (".", "O")]
    return "".join(f"{word} {tag}\n" for word, tag in words)


def _squad(cities: Iterable[str]) -> str:
    """Return a SQuAD file with a question about each city and one without an answer."""
    context = "The train goes to {}. It is late."
    questions = [
        {
            "context": context.format(city),
            "qas": [
                {"id": city, "question": "where to?", "answers": [{"text": city, "answer_start": context.index("{")}]},
                {"id": f"not {city}", "question": "who pays?", "answers": [], "is_impossible": True},
            ],
        }
        for city in cities
    ]
    return json.dumps({"version": "v2.0", "data": [{"title": "trains", "paragraphs": questions}]})


@dataclass(frozen=True)
class StandardModels:
    """The checkpoints and bundles that pages start from, each made when it is first asked for.

    Args:
        cache: the folder to make them in.
        vocabulary: a folder with the tokenizer's vocabulary.
        config: configuration of their encoder.
    """

    cache: Path
    vocabulary: Path
    config: EncoderConfig

    def checkpoint(self, name: str) -> Path:
        """Return the folder of a checkpoint with random weights."""
        labels = sorted({json.loads(line)["label"] for line in _intents("train")})
        tasks: dict[str, Callable[[], Task]] = {
            _BASE: lambda: SentenceEmbedding(dimensions=self.config.hidden_size),
            "intents": lambda: TextClassification(labels=tuple(labels)),
            "entities": lambda: TokenClassification(labels=("O", "B-city", "I-city")),
            "answers": QuestionAnswering,
            "splade": lambda: SparseEmbedding(vocab_size=self.config.vocab_size),
            "inference": lambda: TextClassification(labels=("contradiction", "neutral", "entailment")),
        }
        return made_once(self.cache / name, lambda folder: self._save(tasks[name](), folder))

    def bundle(self, name: str) -> Path:
        """Return the folder of a bundle of `BUNDLES`."""
        from bert_export import export

        checkpoint = self.checkpoint(BUNDLES[name])
        return made_once(self.cache / name, lambda folder: export(checkpoint, folder))

    def _save(self, task: Task, folder: Path) -> None:
        torch.manual_seed(7)
        folder.mkdir()
        save_model(TaskModel(replace(self.config, num_layers=6), task), folder, tokenizer_from=self.vocabulary)


def fill_page_folder(folder: Path, models: StandardModels, setup: Iterable[tuple[str, str]]) -> None:
    """Write into `folder` what the blocks of a page read: data, the base checkpoint and what its `setup` names."""
    write_data(folder)
    for kind, name in {("checkpoint", _BASE), *setup}:
        made = {"bundle": models.bundle, "checkpoint": models.checkpoint}[kind](name)
        shutil.copytree(made, folder / name)
