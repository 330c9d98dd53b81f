"""Measure how well a sentence-embedding bundle retrieves: FP32, INT8 and quantized vectors, vs. sentence-transformers.

python -m bert_bench.experiments.retrieval --checkpoint CKPT --data FOLDER --output FILE [--no-peer]

The data set is a folder in BEIR's format, such as `docs/examples/squad_retrieval.py` makes of SQuAD. The bundle's
metrics are those of `bert-export evaluate`. sentence-transformers runs the checkpoint in FP32 in an environment of its
own, and its `InformationRetrievalEvaluator` computes the metrics there. INT8 is calibrated on the built-in texts: the
judged texts are held out.

Made bench/results/retrieval-squad.json.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click

from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_bench.workers.environments import Environment, bench_cache_dir
from bert_export import export
from bert_runtime import load
from bert_runtime.records.retrieval import RetrievalData, read_retrieval_folder
from bert_runtime.retrieval import evaluate_retrieval
from bert_runtime.tasks import SentenceEmbedding

__all__ = ["main", "results_table"]

_VECTORS = ("float32", "int8", "binary")
"""Precisions of the vectors, of the FP32 model."""

_PEER = """
import json, sys
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import InformationRetrievalEvaluator

checkpoint, data = sys.argv[1], json.load(sys.stdin)
model = SentenceTransformer(checkpoint, device="cpu")
relevant = {query: set(documents) for query, documents in data["relevant"].items()}
evaluator = InformationRetrievalEvaluator(
    data["queries"], data["corpus"], relevant, ndcg_at_k=[10], mrr_at_k=[10], accuracy_at_k=[1],
    precision_recall_at_k=[1, 10, 100], map_at_k=[100], write_csv=False,
)
print(json.dumps({key: float(value) for key, value in evaluator(model).items()}))
"""
"""The program that runs in the peer's environment; its last line is the result."""

_PEER_NAMES = {
    "ndcg_at_10": "cosine_ndcg@10",
    "mrr_at_10": "cosine_mrr@10",
    "recall_at_1": "cosine_recall@1",
    "recall_at_10": "cosine_recall@10",
    "recall_at_100": "cosine_recall@100",
}
"""The peer's names of our metrics."""


def measure_peer(checkpoint: Path, data: RetrievalData) -> dict[str, float]:
    """Return the metrics of sentence-transformers."""
    environment = Environment("sentence-transformers", bench_cache_dir())
    environment.ensure(click.echo)
    relevant = {
        query: [document for document, grade in grades.items() if grade >= 1] for query, grades in data.qrels.items()
    }
    finished = subprocess.run(
        [environment.python, "-c", _PEER, checkpoint.resolve()],
        input=json.dumps({"queries": dict(data.queries), "corpus": dict(data.corpus), "relevant": relevant}),
        capture_output=True,
        text=True,
        check=False,
        env={**environment.variables(), "PATH": "/usr/bin:/bin"},
    )
    if finished.returncode:
        raise click.ClickException(f"sentence-transformers failed: {finished.stderr[-2000:]}")
    found = json.loads(finished.stdout.splitlines()[-1])
    return {name: found[other] for name, other in _PEER_NAMES.items()}


def measure_bundle(bundle: Path, data: RetrievalData) -> dict[str, dict[str, float]]:
    """Return the metrics of a bundle's two models, and of the quantized vectors of the first."""
    models = {precision: load(bundle, precision=precision) for precision in ("fp32", "int8")}
    found = {f"{precision}, float32 vectors": evaluate_retrieval(model, data) for precision, model in models.items()}
    for vectors in _VECTORS[1:]:
        quantized = models["fp32"].with_options(embedding_precision=vectors)
        found[f"fp32, {vectors} vectors"] = evaluate_retrieval(quantized, data)
    return found


def results_table(result: Path) -> str:
    """Return a result file as a Markdown table, one row per engine."""
    found = json.loads(result.read_text("utf-8"))
    rows = []
    for name, metrics in found["engines"].items():
        engine, _, vectors = name.partition(", ")
        title = {"fp32": "FP32", "int8": "INT8"}.get(engine, f"{engine}, FP32")
        columns = [f"{metrics[key]:.4f}" for key in _PEER_NAMES]
        rows.append([title, vectors.removesuffix(" vectors"), *columns])
    header = ["", "vectors", "nDCG@10", "MRR@10", "recall@1", "recall@10", "recall@100"]
    return markdown_table(header, rows, num_names=2)


@click.command(help=__doc__)
@path_option("--checkpoint", "Checkpoint folder of a sentence-embedding model.")
@path_option("--data", "Folder in BEIR's format.")
@click.option("--peer/--no-peer", default=True, show_default=True, help="Measure sentence-transformers, too.")
@path_option("--output", "Result file to write.")
def main(checkpoint: Path, data: Path, peer: bool, output: Path) -> None:
    """Export the checkpoint, measure, write the result."""
    read = read_retrieval_folder(data)
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle"
        manifest = export(checkpoint, bundle, progress=click.echo)
        assert isinstance(manifest.task, SentenceEmbedding)
        engines = measure_bundle(bundle, read)
    if peer:
        engines = {"sentence-transformers, float32 vectors": measure_peer(checkpoint, read), **engines}
    rounded = {name: {key: round(value, 6) for key, value in found.items()} for name, found in engines.items()}
    counts: dict[str, Any] = {"documents": len(read.corpus), "queries": len(read.queries)}
    write_result(output, {**counts, "dimensions": manifest.task.dimensions, "engines": rounded})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
