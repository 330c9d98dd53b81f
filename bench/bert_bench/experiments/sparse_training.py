"""Train sparse embeddings on SQuAD next to sentence-transformers, and judge both in FP32 and INT8.

python -m bert_bench.experiments.sparse_training --base CKPT --train FILE --test FILE --folder FOLDER --output FILE

The data and the judgement are those of `ranking_training`. Both trainers have one loss (cross-entropy of dot products,
and SPLADE's regularizer of FLOPs with the same weights and schedule), batch size, learning rate with 10 % warm-up and
linear decay, number of epochs, maximum of tokens and arithmetic, and differ in the order of the batches. The base
without training is judged, too.

`--compare` needs sentence-transformers and accelerate in the environment.
"""

import json
from pathlib import Path
from typing import cast

import click
import numpy as np

from bert_bench.experiments.harness import training_options
from bert_bench.experiments.ranking_training import RankingComparison, training_arguments
from bert_bench.reports.markdown_table import markdown_table
from bert_models.training import TrainSettings
from bert_runtime import Model
from bert_runtime.records import Record
from bert_runtime.tasks import SparseVector

__all__ = ["main", "results_table"]


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
    arguments = SparseEncoderTrainingArguments(**training_arguments(settings, output))
    ranking = SparseMultipleNegativesRankingLoss(model)
    loss = SpladeLoss(model, ranking, settings.document_flops, settings.query_flops)
    SparseEncoderTrainer(model, arguments, data, loss=loss).train()
    model.save_pretrained(str(output / "checkpoint"))


def _sizes(model: Model, records: list[Record]) -> dict[str, float]:
    """Return how many weights a question and a paragraph have, the mean."""
    sizes = {}
    for field in ("text", "text_pair"):
        vectors = cast(list[SparseVector], model([record.text(field) for record in records]))
        sizes[f"weights_per_{field}"] = round(float(np.mean([len(vector.indices) for vector in vectors])), 1)
    return sizes


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
    """Train and judge sparse embeddings."""
    settings = TrainSettings(epochs=epochs, batch_size=batch_size, lr=lr, max_tokens=max_tokens, precision="bf16")
    comparison = RankingComparison(
        task="sparse-embedding", base=base, folder=folder, settings=settings,
        train_theirs=_train_theirs, describe=_sizes,
    )  # fmt: skip
    comparison.run(train, test, rows, test_rows, seeds, output, compare=compare)


if __name__ == "__main__":
    main()
