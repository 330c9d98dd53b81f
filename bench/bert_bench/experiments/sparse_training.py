"""Train sparse embeddings on SQuAD next to sentence-transformers, and judge both in FP32 and INT8.

python -m bert_bench.experiments.sparse_training --base CKPT --train FILE --test FILE --folder FOLDER --output FILE

A training row is a question with the paragraph that it was asked of, and another paragraph of the same article as a
negative, as are all paragraphs of the other rows of a batch: with those alone, the base has next to nothing to learn.
A test question looks for its paragraph among those of all test questions, whose articles are others. Both
trainers have one loss (cross-entropy of dot products, and SPLADE's regularizer of FLOPs with the same weights and
schedule), batch size, learning rate with 10 % warm-up and linear decay, number of epochs, maximum of tokens and
arithmetic, and differ in the order of the batches. The base without training is judged, too.

Runs that the output file already has, of the same data and settings, are not repeated. `--compare` needs
sentence-transformers and accelerate in the environment.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click
import numpy as np

from bert_bench.experiments.harness import training_options, unfinished_result, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_export import export
from bert_models.training import TrainSettings, fine_tune
from bert_runtime import evaluate, load
from bert_runtime.records import read_records
from bert_runtime.tasks import SparseVector

__all__ = ["main", "results_table", "write_rows"]

_TRAINERS = ("bert-export", "sentence-transformers")


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


def _train_theirs(base: Path, train: Path, output: Path, settings: TrainSettings) -> None:
    """Train sentence-transformers' `SparseEncoder` with the same settings."""
    from datasets import Dataset
    from sentence_transformers import SparseEncoder, SparseEncoderTrainer, SparseEncoderTrainingArguments
    from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
    from transformers import set_seed

    set_seed(settings.seed)
    model = SparseEncoder(str(base), device="cpu")
    model.max_seq_length = settings.max_tokens
    data = Dataset.from_list([json.loads(line) for line in train.read_text("utf-8").splitlines()])
    arguments = SparseEncoderTrainingArguments(
        output_dir=str(output / "run"), num_train_epochs=settings.epochs, learning_rate=settings.lr,
        per_device_train_batch_size=settings.batch_size, warmup_steps=settings.warmup_ratio,
        weight_decay=settings.weight_decay, max_grad_norm=settings.max_grad_norm, seed=settings.seed,
        bf16=settings.precision == "bf16", use_cpu=True, save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    ranking = SparseMultipleNegativesRankingLoss(model)
    loss = SpladeLoss(model, ranking, settings.document_flops, settings.query_flops)
    SparseEncoderTrainer(model, arguments, data, loss=loss).train()
    model.save_pretrained(str(output / "checkpoint"))


def _judge(checkpoint: Path, bundle: Path, train: Path, test: Path, max_tokens: int) -> dict[str, Any]:
    """Export a checkpoint; return its metrics in both precisions, and how many weights a text has."""
    export(checkpoint, bundle, task="sparse-embedding", max_tokens=max_tokens, calibrate=train, force=True)
    records = read_records(test)
    result: dict[str, Any] = {}
    for precision in ("fp32", "int8"):
        model = load(bundle, precision=precision)
        metrics = evaluate(model, records)
        result[precision] = {name: round(value, 4) for name, value in metrics.items()}
        for field in ("text", "text_pair"):
            vectors = cast(list[SparseVector], model([record.text(field) for record in records]))
            sizes = [len(vector.indices) for vector in vectors]
            result[precision][f"weights_per_{field}"] = round(float(np.mean(sizes)), 1)
    return result


def results_table(path: Path) -> str:
    """Return a result file as a Markdown table: a row per trainer, means over the seeds."""
    found = json.loads(path.read_text("utf-8"))
    rows = []
    trainers = {"the base, untrained": [found["base"]], "`bert-export train`": found["bert-export"]}
    trainers["sentence-transformers"] = found["sentence-transformers"]
    for title, runs in trainers.items():
        if not runs:
            continue
        ranking = [np.mean([run[precision]["ndcg_at_10"] for run in runs]) for precision in ("fp32", "int8")]
        sizes = [np.mean([run["fp32"][f"weights_per_{field}"] for run in runs]) for field in ("text", "text_pair")]
        rows.append([title, *(f"{value:.4f}" for value in ranking), *(f"{size:.0f}" for size in sizes)])
    return markdown_table(["", "nDCG@10, FP32", "nDCG@10, INT8", "weights of a question", "of a paragraph"], rows)


@click.command(help=__doc__)
@click.option("--rows", type=int, default=1000, show_default=True, help="Rows to train on.")
@click.option("--test-rows", type=int, default=400, show_default=True, help="Questions, and paragraphs, to judge on.")
@click.option("--epochs", type=int, default=2, show_default=True)
@training_options
def main(
    base: Path, train: Path, test: Path, rows: int, test_rows: int, epochs: int, lr: float,
    batch_size: int, max_tokens: int, seeds: int, compare: bool, folder: Path, output: Path,
) -> None:  # fmt: skip
    """Make the data, train, judge, write the result after every run."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs, held_out, dev = folder / "train.jsonl", folder / "test.jsonl", folder / "dev.jsonl"
    rows, test_rows = write_rows(train, pairs, rows), write_rows(test, held_out, test_rows)
    write_rows(train, dev, 20)  # rows that are trained on: they choose nothing but the last epoch
    settings = TrainSettings(epochs=epochs, batch_size=batch_size, lr=lr, max_tokens=max_tokens, precision="bf16")
    result = unfinished_result(
        output, {"rows": rows, "test_rows": test_rows, "settings": settings.to_dict()}, _TRAINERS
    )
    if "base" not in result:
        result["base"] = _judge(base, folder / "base-bundle", pairs, held_out, max_tokens)
    for seed in range(seeds):
        for name in _TRAINERS if compare else _TRAINERS[:1]:
            if any(run["seed"] == seed for run in result[name]):
                continue
            run_folder, seeded = folder / f"{name}-{seed}", replace(settings, seed=seed)
            checkpoint = run_folder if name == _TRAINERS[0] else run_folder / "checkpoint"
            start = time.monotonic()
            if name == _TRAINERS[0]:
                fine_tune("sparse-embedding", base, pairs, dev, checkpoint, seeded, force=True, progress=click.echo)
            else:
                _train_theirs(base, pairs, run_folder, seeded)
            seconds = time.monotonic() - start
            judged = _judge(checkpoint, folder / f"{name}-{seed}-bundle", pairs, held_out, max_tokens)
            result[name].append({"seed": seed, "train_s": round(seconds, 1), **judged})
            write_result(output, result)
            click.echo(json.dumps(result[name][-1]))


if __name__ == "__main__":
    main()
