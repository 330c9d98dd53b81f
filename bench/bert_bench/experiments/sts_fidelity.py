"""Measure how close a sentence-embedding bundle is to transformers, on the sentence pairs of STS-B.

python -m bert_bench.experiments.sts_fidelity --checkpoint CKPT --sts FILE --calibrate FILE --output FILE

Fidelity is the cosine similarity of the bundle's embeddings, FP32 and INT8, with those of transformers' model and
tokenizer in FP32, pooled and normalized as sentence-transformers does: mean, 1st percentile and minimum over 1,000
different sentences. The task metric is Spearman's correlation of the cosines of all pairs with their human scores. INT8
is calibrated on the built-in texts, or on sentences of another file, such as the training rows: the judged file is held
out either way.

Made bench/results/sts-mpnet.json.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import MISSING, markdown_table
from bert_export import export
from bert_models import open_checkpoint
from bert_runtime import load
from bert_runtime.metrics.correlation import spearman
from bert_runtime.numerics import FloatArray
from bert_runtime.records import read_records
from bert_runtime.similarity import cosine
from bert_runtime.tasks import SentenceEmbedding, stack_single_window

__all__ = ["main", "measure_fidelity", "results_table", "transformers_embeddings"]

_BATCH = 16


def transformers_embeddings(checkpoint: Path, texts: list[str]) -> FloatArray:
    """Return transformers' mean-pooled and normalized embeddings, float32 [N, H].

    Raises:
        ClickException: the checkpoint pools in another way.
    """
    from transformers import AutoModel, AutoTokenizer

    source = open_checkpoint(checkpoint)
    task = source.task()
    if not isinstance(task, SentenceEmbedding) or task.pooling != "mean" or task.dense_sizes or not task.normalize:
        raise click.ClickException(f"{checkpoint}: expected mean pooling and normalization alone, found {task}")
    tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), AutoModel.from_pretrained(checkpoint).eval()
    limit = source.text_tokenizer().max_tokens
    order = np.argsort([len(text) for text in texts], kind="stable")
    embeddings = np.zeros((len(texts), source.config.hidden_size), dtype=np.float32)
    for first in range(0, len(texts), _BATCH):
        indices = order[first : first + _BATCH]
        batch = tokenizer(
            [texts[i] for i in indices], padding=True, truncation=True, max_length=limit, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None]
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            embeddings[indices] = torch.nn.functional.normalize(pooled, dim=-1).numpy()
    return embeddings


def measure_fidelity(bundle: Path, checkpoint: Path, sts: Path, count: int) -> dict[str, Any]:
    """Compare a bundle's variants with transformers.

    Args:
        bundle: a bundle with FP32 and INT8 for the CPU.
        checkpoint: what it was exported from.
        sts: CSV file without a header: two sentences and a score in each row.
        count: how many different sentences to compare embeddings of.

    Returns:
        The number of `sentences` and of `pairs`; by engine `spearman`, and for the bundle's precisions the cosine's
        `mean`, `p1` and `min`.
    """
    records = read_records(sts, {"text": "0", "text_pair": "1", "score": "2"})
    pairs = [(record.text(), record.text("text_pair")) for record in records]
    scores = np.array([record.number("score") for record in records])
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    row = {text: number for number, text in enumerate(texts)}
    first, second = (np.array([row[text] for text in column]) for column in zip(*pairs, strict=True))
    reference = transformers_embeddings(checkpoint, texts)
    result: dict[str, Any] = {"sentences": min(count, len(texts)), "pairs": len(pairs)}
    for engine in ("transformers", "fp32", "int8"):
        vectors = reference
        found = {}
        if engine != "transformers":
            vectors = stack_single_window(load(bundle, precision=engine).outputs(texts))
            similarity = cosine(vectors, reference)[:count].astype(np.float64)
            found = {"mean": similarity.mean(), "p1": np.percentile(similarity, 1), "min": similarity.min()}
        found["spearman"] = spearman(cosine(vectors[first], vectors[second]), scores)
        result[engine] = {name: round(float(value), 8) for name, value in found.items()}
    return result


def results_table(result: Path) -> str:
    """Return a result file as a Markdown table, one row per engine."""
    found = json.loads(result.read_text("utf-8"))
    rows = []
    for engine, title in (("transformers", "transformers, FP32"), ("fp32", "FP32"), ("int8", "INT8")):
        values = found[engine]
        cosines = [f"{values[key]:.7f}" if key in values else MISSING for key in ("mean", "p1", "min")]
        rows.append([title, *cosines, f"{values['spearman']:.4f}"])
    return markdown_table(["", "mean cosine", "1st percentile", "minimum", "Spearman"], rows)


@click.command(help=__doc__)
@path_option("--checkpoint", "Checkpoint folder of a sentence-embedding model with mean pooling.")
@path_option("--sts", "CSV file of STS-B: two sentences and a score in each row, without a header.")
@path_option("--calibrate", "CSV file of sentences like STS-B's, by default built-in texts.", required=False)
@click.option("--count", type=int, default=1000, show_default=True, help="Different sentences to compare.")
@path_option("--output", "Result file to write.")
def main(checkpoint: Path, sts: Path, calibrate: Path | None, count: int, output: Path) -> None:
    """Export the checkpoint, measure, write the result."""
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle"
        export(checkpoint, bundle, calibrate=calibrate, columns={"text": "0"}, progress=click.echo)
        result = measure_fidelity(bundle, checkpoint, sts, count)
    write_result(output, {"calibrated_on": "built-in texts" if calibrate is None else calibrate.name, **result})
    click.echo(result)


if __name__ == "__main__":
    main()
