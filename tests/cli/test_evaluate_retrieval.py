"""`bert-export evaluate` and `export --evaluate` on retrieval data sets."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from click.testing import Result

from bert_export import ExportError, export
from bert_runtime import Model, load
from bert_runtime.records.retrieval import read_retrieval_folder, read_run
from bert_runtime.retrieval import evaluate_retrieval

Run = Callable[..., Result]

WORDS = ("card", "money", "bank", "hello", "please", "help", "lost", "where", "bye", "good", "bad", "time")
DOCUMENTS = [f"{first} {second} {third}" for first in WORDS for second in WORDS[:5] for third in WORDS[5:8]]
QUERIES = [f"my {first} and {second}?" for first in WORDS for second in WORDS[:2]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder: a document is relevant where it starts with a query's first word, more so with its second."""
    folder = tmp_path_factory.mktemp("beir") / "toy"
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{index}", "title": "", "text": text} for index, text in enumerate(DOCUMENTS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"_id": f"q{index}", "text": text} for index, text in enumerate(QUERIES)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [
        f"q{query}\td{document}\t{1 + (text.split()[1] in words.split()[3])}\n"
        for query, words in enumerate(QUERIES)
        for document, text in enumerate(DOCUMENTS)
        if text.split()[0] == words.split()[1]
    ]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder


@pytest.fixture(scope="module")
def model(embedding_bundle: Path) -> Model:
    return load(embedding_bundle, precision="fp32", threads=1)


def trec_eval(folder: Path, queries: np.ndarray, documents: np.ndarray) -> dict[str, float]:
    """Means of trec_eval's measures over brute-force cosine similarities."""
    qrels: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, grade = line.split("\t")
        qrels.setdefault(query, {})[document] = int(grade)
    scores = queries @ documents.T
    run = {
        f"q{query}": {f"d{document}": float(scores[query, document]) for document in np.argsort(-scores[query])[:100]}
        for query in range(len(queries))
    }
    found = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.1,10,100"}).evaluate(run)
    names = {"ndcg_at_10": "ndcg_cut_10", **{f"recall_at_{k}": f"recall_{k}" for k in (1, 10, 100)}}
    return {name: float(np.mean([item[other] for item in found.values()])) for name, other in names.items()}


def test_metrics_are_those_of_trec_eval(run: Run, folder: Path, model: Model, embedding_bundle: Path) -> None:
    result = run("evaluate", embedding_bundle, folder, "--precision", "fp32", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    expected = trec_eval(folder, model.encode(QUERIES), model.encode(DOCUMENTS))
    assert {key: found[key] for key in ("precision", "queries", "documents")} == {
        "precision": "fp32",
        "queries": 24,
        "documents": 180,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-6)
    assert 0 < found["ndcg_at_10"] < 1
    assert 0 < found["mrr_at_10"] <= 1


def test_files_anywhere_and_the_run(run: Run, folder: Path, embedding_bundle: Path, tmp_path: Path) -> None:
    files = ["--corpus", folder / "corpus.jsonl", "--queries", folder / "queries.jsonl"]
    files += ["--qrels", folder / "qrels" / "test.tsv", "--run-output", tmp_path / "run.txt"]
    result = run(
        "evaluate", embedding_bundle, *files, "--json", "--dimensions", "16", "--embedding-precision", "binary"
    )
    assert result.exit_code == 0, result.output
    retrieved = read_run(tmp_path / "run.txt")
    assert len(retrieved) == 24
    assert {len(scores) for scores in retrieved.values()} == {100}
    vectors = load(embedding_bundle).encode([QUERIES[0], DOCUMENTS[0]], dimensions=16)
    signs = np.where(vectors > 0, 1, -1)
    if "d0" in retrieved["q0"]:
        assert retrieved["q0"]["d0"] == pytest.approx(signs[0] @ signs[1] / 16, abs=1e-6)


def test_prompts_of_queries_and_documents(folder: Path, prompted_bundle: Path, model: Model, run: Run) -> None:
    found = json.loads(run("evaluate", prompted_bundle, folder, "--json").stdout)
    queries = model.encode([f"question {text}" for text in QUERIES])
    expected = trec_eval(folder, queries, model.encode([f"card: {text}" for text in DOCUMENTS]))
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-6)
    without = json.loads(run("evaluate", prompted_bundle, folder, "--prompt", "", "--json").stdout)
    expected = trec_eval(folder, model.encode(QUERIES), model.encode(DOCUMENTS))
    assert {key: without[key] for key in expected} == pytest.approx(expected, abs=1e-6)


def test_exports_are_judged_with_the_prompts_of_evaluate(folder: Path, prompted_bundle: Path, tmp_path: Path) -> None:
    """Also where the model has a default prompt, as this one has."""
    checkpoint = prompted_bundle.parent / "checkpoint"
    manifest = export(checkpoint, tmp_path / "bundle", evaluate=folder, precisions=["fp32"])
    found = manifest.variants[0].metrics
    expected = evaluate_retrieval(load(tmp_path / "bundle", threads=1), read_retrieval_folder(folder))
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-6)


def test_int8_is_gated_by_ndcg(folder: Path, embedding_checkpoint: Path, tmp_path: Path) -> None:
    manifest = export(embedding_checkpoint, tmp_path / "bundle", evaluate=folder, max_drop=0.0)
    fp32, int8 = (variant.metrics for variant in manifest.variants)
    assert fp32["examples"] == 24
    assert set(fp32) >= {"ndcg_at_10", "mrr_at_10", "recall_at_100"}
    drop = 100 * (fp32["ndcg_at_10"] - int8["ndcg_at_10"])
    assert manifest.default_reason.startswith(
        f"INT8 ndcg_at_10 {int8['ndcg_at_10']:.4f} against {fp32['ndcg_at_10']:.4f} in FP32 on 24 examples, "
        f"a drop of {drop:.2f} points where 0 are allowed"
    )
    assert manifest.variant("int8").faithful <= (drop <= 1e-9)
    assert "ndcg_at_10" in (tmp_path / "bundle" / "README.md").read_text()
    model = load(tmp_path / "bundle", precision="fp32", threads=1)
    expected = trec_eval(folder, model.encode(QUERIES), model.encode(DOCUMENTS))
    assert {key: fp32[key] for key in expected} == pytest.approx(expected, abs=1e-6)


def test_usage(run: Run, folder: Path, embedding_bundle: Path, classifier_bundle: Path) -> None:
    for arguments, message in (
        ([], "expected FILE, or --corpus, --queries and --qrels together"),
        (["--corpus", "c.jsonl"], "expected FILE, or --corpus, --queries and --qrels together"),
        ([folder, "--corpus", "c.jsonl"], "give either FILE or --corpus, --queries and --qrels, not both"),
        (["dev.csv", "--run-output", "run.txt"], "--first-stage and --run-output are for retrieval"),
    ):
        result = run("evaluate", embedding_bundle, *arguments)
        assert (result.exit_code, message in result.output) == (2, True), result.output
    result = run("evaluate", classifier_bundle, folder)
    assert result.exit_code == 1
    assert (
        "retrieval needs a model for sentence-embedding or sparse-embedding, or one that scores pairs" in result.output
    )


def test_other_tasks_are_not_gated_by_a_folder(folder: Path, classifier_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="expected a labelled file for text-classification, found a folder"):
        export(classifier_checkpoint, tmp_path / "bundle", evaluate=folder)
