"""Train sentence embeddings for search on SQuAD next to sentence-transformers, and judge both in FP32 and INT8.

python -m bert_bench.experiments.embedding_training --base CKPT --train FILE --test FILE --folder FOLDER --output FILE

The data and the judgement are those of `ranking_training`. Both trainers have one loss (cross-entropy of 20 times the
cosine, among all paragraphs of the batch), batch size, learning rate with 10 % warm-up and linear decay, number of
epochs, maximum of tokens and arithmetic, and differ in the order of the batches. The base without training is judged,
too.

`--compare` needs sentence-transformers and accelerate in the environment.
"""

import json
from pathlib import Path

import click
import numpy as np

from bert_bench.experiments.harness import training_options
from bert_bench.experiments.ranking_training import RankingComparison, training_arguments
from bert_bench.reports.markdown_table import markdown_table
from bert_models.training import TrainSettings

__all__ = ["main", "results_table"]


def _train_theirs(base: Path, train: Path, output: Path, settings: TrainSettings) -> None:
    """Train a `SentenceTransformer` with the same settings."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from transformers import set_seed

    set_seed(settings.seed)
    model = SentenceTransformer(str(base), device="cpu")
    model.max_seq_length = settings.max_tokens
    data = Dataset.from_list([json.loads(line) for line in train.read_text("utf-8").splitlines()])
    arguments = SentenceTransformerTrainingArguments(**training_arguments(settings, output))
    SentenceTransformerTrainer(model, arguments, data, loss=MultipleNegativesRankingLoss(model)).train()
    model.save_pretrained(str(output / "checkpoint"))


def results_table(path: Path) -> str:
    """Return a result file as a Markdown table: a row for each trainer, a value for each seed."""
    found = json.loads(path.read_text("utf-8"))
    trainers = {"the base, untrained": [found["base"]], "`bert-export train`": found["bert-export"]}
    trainers["sentence-transformers"] = found["sentence-transformers"]
    columns = {"nDCG@10, FP32": ("fp32", "ndcg_at_10"), "nDCG@10, INT8": ("int8", "ndcg_at_10")}
    columns["MRR@10, INT8"] = ("int8", "mrr_at_10")
    rows = []
    for title, runs in trainers.items():
        values = [[run[precision][metric] for run in runs] for precision, metric in columns.values()]
        seconds = [run["train_s"] for run in runs if "train_s" in run]
        if runs:
            cells = (", ".join(f"{value:.4f}" for value in column) for column in values)
            rows.append([title, *cells, f"{np.mean(seconds):.0f}" if seconds else "–"])
    return markdown_table(["", *columns, "seconds to train"], rows)


@click.command(help=__doc__)
@click.option("--rows", type=int, default=1000, show_default=True, help="Rows to train on.")
@click.option("--test-rows", type=int, default=400, show_default=True, help="Questions, and paragraphs, to judge on.")
@click.option("--epochs", type=int, default=1, show_default=True)
@training_options
def main(
    base: Path, train: Path, test: Path, rows: int, test_rows: int, epochs: int, lr: float,
    batch_size: int, max_tokens: int, seeds: int, compare: bool, folder: Path, output: Path,
) -> None:  # fmt: skip
    """Train and judge sentence embeddings."""
    settings = TrainSettings(epochs=epochs, batch_size=batch_size, lr=lr, max_tokens=max_tokens, precision="bf16")
    comparison = RankingComparison(
        task="sentence-embedding", base=base, folder=folder, settings=settings, train_theirs=_train_theirs
    )
    comparison.run(train, test, rows, test_rows, seeds, output, compare=compare)


if __name__ == "__main__":
    main()
