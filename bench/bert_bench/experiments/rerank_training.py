"""Train a reranker on SQuAD's questions and paragraphs, next to sentence-transformers, and judge both, FP32 and INT8.

python -m bert_bench.experiments.rerank_training --base CKPT --train FILE --test FILE --output FILE --folder FOLDER

A question is trained on with the paragraph that it was asked of, and with a few others of the same article. `--rows`
says how they are written, and so the loss of both trainers:

    pairs    a row for each paragraph, label 1 or 0                     binary cross-entropy
    triples  a row for each question: the positive, and the negatives   cross-entropy of the positive among them
    lists    a row for each question: the paragraphs with scores        LambdaLoss

A test row is a question with the ten paragraphs of its article, of which one is right; its articles are others. Both
trainers have one loss, batch size (in rows), learning rate with 10 % warm-up and linear decay, number of epochs,
maximum of tokens and arithmetic (bf16), and differ in the order of the batches and the initial weights of the head.
Without training, documents are ranked by the cosine of the base's embeddings.

Runs that the output file already has, of the same data and settings, are not repeated: a long measurement can be made
in parts. `--compare` needs sentence-transformers and accelerate in the environment. No reranker that others trained can
be installed without a download from a hub.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np

from bert_bench.experiments.harness import training_options, unfinished_result, write_result
from bert_bench.experiments.ranking_training import training_arguments
from bert_bench.reports.markdown_table import MISSING, markdown_table
from bert_export import export
from bert_models.training import TrainSettings, fine_tune
from bert_runtime import evaluate, load
from bert_runtime.metrics import retrieval_metrics
from bert_runtime.records import read_records
from bert_runtime.similarity import cosine
from bert_runtime.tasks.relevance_rows import read_pairs

__all__ = ["ROW_KINDS", "main", "results_table", "their_columns", "write_lists", "write_training_rows"]

_CANDIDATES = 10
_TRAINERS = ("bert-export", "sentence-transformers")
ROW_KINDS = ("pairs", "triples", "lists")
"""Kinds of training rows."""

_CERTAIN = 20.0
"""Grade whose share of a softmax with three zeros differs from 1 by 6e-9."""


def _questions(squad: Path, count: int, seed: int) -> Iterator[tuple[str, str, list[str]]]:
    """Yield questions with their paragraph and the others of their article, drawn at random without repetition."""
    articles: dict[str, list[str]] = {}
    records = read_records(squad)
    for record in records:
        paragraphs = articles.setdefault(record.text("title"), [])
        if record.text("context") not in paragraphs:
            paragraphs.append(record.text("context"))
    random = np.random.default_rng(seed)
    drawn = 0
    for index in random.permutation(len(records)).tolist():
        record = records[index]
        others = [text for text in articles[record.text("title")] if text != record.text("context")]
        if drawn < count and len(others) >= _CANDIDATES - 1:
            drawn += 1
            chosen = random.permutation(len(others))[: _CANDIDATES - 1].tolist()
            yield record.text("question"), record.text("context"), [others[i] for i in chosen]


def write_training_rows(squad: Path, path: Path, count: int, negatives: int, kind: str) -> None:
    """Write rows to train on: each question with its own paragraph, and with some that do not answer it.

    Args:
        squad: SQuAD file.
        path: file to write.
        count: questions.
        negatives: wrong paragraphs of each question.
        kind: a value of `ROW_KINDS`.

    """
    rows: list[dict[str, Any]] = []
    for query, right, others in _questions(squad, count, seed=0):
        wrong = others[:negatives]
        if kind == "triples":
            rows.append({"query": query, "positive": right, "negative": wrong})
        elif kind == "lists":
            rows.append({"query": query, "documents": [right, *wrong], "scores": [1, *[0] * negatives]})
        else:
            rows.append({"text": query, "text_pair": right, "label": 1})
            rows += [{"text": query, "text_pair": text, "label": 0} for text in wrong]
    _write(rows, path)


def write_lists(squad: Path, path: Path, count: int) -> None:
    """Write rows to judge on: each question with ten paragraphs, the right one among them."""
    rows: list[dict[str, Any]] = []
    for number, (query, right, others) in enumerate(_questions(squad, count, seed=0)):
        position = number % _CANDIDATES
        documents = [*others[:position], right, *others[position:]]
        rows.append({"query": query, "documents": documents, "scores": [int(text == right) for text in documents]})
    _write(rows, path)


def _write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _train_theirs(base: Path, train: Path, output: Path, settings: TrainSettings) -> None:
    """Train sentence-transformers' `CrossEncoder` with the same settings."""
    from datasets import Dataset
    from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder import losses
    from transformers import set_seed

    set_seed(settings.seed)
    model = CrossEncoder(str(base), num_labels=1, max_length=settings.max_tokens, device="cpu")
    rows = [json.loads(line) for line in train.read_text("utf-8").splitlines()]
    columns = [their_columns(row) for row in rows]
    loss = losses.BinaryCrossEntropyLoss
    if "scores" in rows[0]:
        loss = losses.LambdaLoss
    elif "positive" in rows[0]:
        loss = losses.ListNetLoss
    arguments = CrossEncoderTrainingArguments(**training_arguments(settings, output))
    CrossEncoderTrainer(model, arguments, Dataset.from_list(columns), loss=loss(model)).train()
    model.save_pretrained(str(output / "checkpoint"))


def their_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the training file as sentence-transformers' losses read it."""
    if "scores" in row:
        return {"query": row["query"], "docs": row["documents"], "label": [float(grade) for grade in row["scores"]]}
    if "positive" in row:  # ListNet with a softmax of the grades that is 1 for one document is their cross-entropy
        documents = [row["positive"], *row["negative"]]
        return {"query": row["query"], "docs": documents, "label": [_CERTAIN, *[0.0] * len(row["negative"])]}
    return {**row, "label": float(row["label"])}


def _train(name: str, base: Path, rows: Path, dev: Path, folder: Path, settings: TrainSettings) -> Path:
    """Train with one of `_TRAINERS`; return the checkpoint."""
    run_folder = folder / f"{name}-{settings.seed}"
    if name == _TRAINERS[0]:
        fine_tune("rerank", base, rows, dev, run_folder, settings, force=True, progress=click.echo)
        return run_folder
    _train_theirs(base, rows, run_folder, settings)
    return run_folder / "checkpoint"


def _judge(checkpoint: Path, bundle: Path, train: Path, test: Path, max_tokens: int) -> dict[str, Any]:
    """Export a checkpoint and return its metrics in both precisions, and which is the bundle's default."""
    manifest = export(checkpoint, bundle, task="rerank", max_tokens=max_tokens, calibrate=train, force=True)
    records = read_records(test)
    result: dict[str, Any] = {"default": manifest.default_precision}
    for precision in ("fp32", "int8"):
        metrics = evaluate(load(bundle, precision=precision), records)
        result[precision] = {name: round(value, 4) for name, value in metrics.items()}
    return result


def _by_embeddings(base: Path, bundle: Path, test: Path) -> dict[str, float]:
    """Return the metrics of ranking by the cosine of the base's own embeddings, FP32."""
    export(base, bundle, task="sentence-embedding", precisions=["fp32"], force=True)
    model = load(bundle)
    run, qrels = {}, {}
    for number, record in enumerate(read_records(test)):
        pairs = read_pairs(record)
        vectors = model.encode([pairs[0].text, *(pair.text_pair or "" for pair in pairs)])
        scores = cosine(np.broadcast_to(vectors[0], vectors[1:].shape), vectors[1:])
        run[str(number)] = {str(index): float(score) for index, score in enumerate(scores)}
        qrels[str(number)] = {str(index): float(grade) for index, grade in enumerate(record.fields["scores"])}
    return {name: round(value, 4) for name, value in retrieval_metrics(run, qrels, recall_at=()).items()}


def results_table(path: Path) -> str:
    """Return a result file as a Markdown table: a row per trainer, with the values of all seeds."""
    found = json.loads(path.read_text("utf-8"))
    chance = np.mean(1 / np.log2(1 + np.arange(1, _CANDIDATES + 1)))
    rows = [
        ["by chance", f"{chance:.4f}", MISSING, MISSING],
        ["embeddings of the base, cosine", f"{found['embeddings']['ndcg_at_10']:.4f}", MISSING, MISSING],
    ]
    for name in _TRAINERS:
        if runs := found[name]:
            values = [", ".join(f"{run[precision][metric]:.4f}" for run in runs) for precision, metric in _COLUMNS]
            rows.append([f"{_TITLES[name]}, {found.get('row_kind', 'pairs')}", *values])
    return markdown_table(["", "nDCG@10, FP32", "nDCG@10, INT8", "MRR@10, INT8"], rows)


_TITLES = {"bert-export": "`bert-export train`", "sentence-transformers": "sentence-transformers"}
_COLUMNS = (("fp32", "ndcg_at_10"), ("int8", "ndcg_at_10"), ("int8", "mrr_at_10"))


@click.command(help=__doc__)
@click.option("--questions", type=int, default=300, show_default=True, help="Questions to train on.")
@click.option("--negatives", type=int, default=3, show_default=True, help="Wrong paragraphs of each question.")
@click.option(
    "--rows", "kind", type=click.Choice(ROW_KINDS), default="pairs", show_default=True, help="Kind of training rows."
)
@click.option("--test-questions", type=int, default=150, show_default=True)
@click.option("--epochs", type=int, default=1, show_default=True)
@training_options
def main(
    base: Path, train: Path, test: Path, questions: int, negatives: int, kind: str, test_questions: int, epochs: int,
    lr: float, batch_size: int, max_tokens: int, seeds: int, compare: bool, folder: Path, output: Path,
) -> None:  # fmt: skip
    """Make the data, train, judge, write the result after every run."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, lists, dev = folder / "train.jsonl", folder / "test.jsonl", folder / "dev.jsonl"
    write_training_rows(train, rows, questions, negatives, kind)
    write_lists(test, lists, test_questions)
    write_lists(train, dev, 20)  # of questions that are trained on: it chooses nothing but the last epoch
    settings = TrainSettings(
        epochs=epochs, batch_size=batch_size, lr=lr, max_tokens=max_tokens, precision="bf16", warmup_ratio=0.1
    )  # fmt: skip
    num_rows = questions * (1 + negatives) if kind == "pairs" else questions
    sizes: dict[str, Any] = {"questions": questions, "rows": num_rows, "test_questions": test_questions}
    if kind != "pairs":  # which results of earlier releases are
        sizes["row_kind"] = kind
    result = unfinished_result(output, {**sizes, "settings": settings.to_dict()}, _TRAINERS)
    if "embeddings" not in result:
        result |= {"embeddings": _by_embeddings(base, folder / "embeddings", lists)}
    for seed, name in product(range(seeds), _TRAINERS if compare else _TRAINERS[:1]):
        if any(run["seed"] == seed for run in result[name]):
            continue
        start = time.monotonic()
        checkpoint = _train(name, base, rows, dev, folder, replace(settings, seed=seed))
        seconds = time.monotonic() - start
        judged = _judge(checkpoint, folder / f"{name}-{seed}-bundle", rows, lists, max_tokens)
        result[name].append({"seed": seed, "train_s": round(seconds, 1), **judged})
        write_result(output, result)
        click.echo(json.dumps(result[name][-1]))


if __name__ == "__main__":
    main()
