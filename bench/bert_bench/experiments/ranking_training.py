"""Embeddings trained on SQuAD by bert-export and by sentence-transformers, and judged alike.

A training row is a question with the paragraph that it was asked of, and another paragraph of the same article as a
negative, as are all paragraphs of the other rows of a batch: with those alone, the base has next to nothing to learn.
A test question looks for its paragraph among those of all test questions, whose articles are others.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from bert_bench.experiments.harness import unfinished_result, write_result
from bert_export import export
from bert_models.training import TrainSettings, fine_tune
from bert_runtime import Model, evaluate, load
from bert_runtime.records import Record, read_records

__all__ = ["TRAINERS", "RankingComparison", "training_arguments", "write_rows"]

TRAINERS = ("bert-export", "sentence-transformers")


def training_arguments(settings: TrainSettings, folder: Path) -> dict[str, Any]:
    """Return settings as keyword arguments of sentence-transformers' training arguments; runs are below the folder."""
    return {
        "output_dir": str(folder / "run"),
        "num_train_epochs": settings.epochs,
        "learning_rate": settings.lr,
        "per_device_train_batch_size": settings.batch_size,
        "warmup_steps": settings.warmup_ratio,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "seed": settings.seed,
        "bf16": settings.precision == "bf16",
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def write_rows(squad: Path, path: Path, count: int) -> int:
    """Write rows of a question, its paragraph and another of the same article, at random, each paragraph once.

    Returns:
        The number of rows, which is smaller than `count` if there are fewer paragraphs.
    """
    records = read_records(squad)
    random = np.random.default_rng(0)
    of_paragraph = {records[index].text("context"): records[index] for index in random.permutation(len(records))}
    by_article: dict[str, list[str]] = {}
    for paragraph, record in of_paragraph.items():
        by_article.setdefault(record.text("title"), []).append(paragraph)
    rows = []
    for paragraph, record in list(of_paragraph.items())[:count]:
        others = [text for text in by_article[record.text("title")] if text != paragraph]
        negative = others[random.integers(len(others))]
        rows.append({"text": record.text("question"), "text_pair": paragraph, "negative": negative})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


@dataclass(frozen=True, kw_only=True)
class RankingComparison:
    """Two trainers of one task on the same rows, and how their models are judged."""

    task: str
    base: Path
    """Checkpoint to start from."""
    folder: Path
    """Data, checkpoints and bundles, which are kept."""
    settings: TrainSettings
    train_theirs: Callable[[Path, Path, Path, TrainSettings], None]
    """Trains with sentence-transformers: base, rows, folder, in which `checkpoint` is written, and settings."""
    describe: Callable[[Model, list[Record]], dict[str, float]] = lambda model, records: {}
    """Returns further numbers of a model on the test rows."""

    def run(
        self, train: Path, test: Path, rows: int, test_rows: int, seeds: int, output: Path, *, compare: bool
    ) -> None:
        """Make the data, train, judge, and write the result after every run.

        Runs that the output file already has, of the same data and settings, are not repeated.

        Args:
            train: SQuAD file to train on.
            test: SQuAD file to judge on.
            rows: rows to train on, at most.
            test_rows: questions to judge on, at most.
            seeds: runs of each trainer.
            output: the result file.
            compare: train with sentence-transformers, too.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        pairs, held_out, dev = (self.folder / f"{name}.jsonl" for name in ("train", "test", "dev"))
        rows, test_rows = write_rows(train, pairs, rows), write_rows(test, held_out, test_rows)
        write_rows(train, dev, 20)  # rows that are trained on: they choose nothing but the last epoch
        found = unfinished_result(
            output, {"rows": rows, "test_rows": test_rows, "settings": self.settings.to_dict()}, TRAINERS
        )
        if "base" not in found:
            found["base"] = self._judge(self.base, "base", pairs, held_out)
        for seed in range(seeds):
            for name in TRAINERS if compare else TRAINERS[:1]:
                if any(run["seed"] == seed for run in found[name]):
                    continue
                found[name].append({"seed": seed, **self._train(name, seed, pairs, dev, held_out)})
                write_result(output, found)
                click.echo(json.dumps(found[name][-1]))

    def _train(self, trainer: str, seed: int, pairs: Path, dev: Path, held_out: Path) -> dict[str, Any]:
        """Train with one of `TRAINERS`; return the seconds and what was judged."""
        folder, settings = self.folder / f"{trainer}-{seed}", replace(self.settings, seed=seed)
        checkpoint, start = folder, time.monotonic()
        if trainer == TRAINERS[0]:
            fine_tune(self.task, self.base, pairs, dev, folder, settings, force=True, progress=click.echo)
        else:
            checkpoint = folder / "checkpoint"
            self.train_theirs(self.base, pairs, folder, settings)
        seconds = time.monotonic() - start
        return {"train_s": round(seconds, 1), **self._judge(checkpoint, f"{trainer}-{seed}", pairs, held_out)}

    def _judge(self, checkpoint: Path, name: str, train: Path, test: Path) -> dict[str, Any]:
        """Export a checkpoint; return its metrics in both precisions."""
        bundle, records = self.folder / f"{name}-bundle", read_records(test)
        export(checkpoint, bundle, task=self.task, max_tokens=self.settings.max_tokens, calibrate=train, force=True)
        result: dict[str, Any] = {}
        for precision in ("fp32", "int8"):
            model = load(bundle, precision=precision)
            metrics = {key: round(value, 4) for key, value in evaluate(model, records).items()}
            result[precision] = {**metrics, **self.describe(model, records)}
        return result
