"""`bert-export rank`: the documents of one query, or of a query in each row."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert_runtime import load

from ..task_bundles import TaskBundles
from .conftest import Run

QUERY = "where is my card"
DOCUMENTS = ["it is lost", "the bank is open", "good morning"]


@pytest.fixture
def reranker_bundle(task_bundles: TaskBundles) -> Path:
    return task_bundles["rerank"]


def expected(bundle: Path, query: str, documents: list[str], top_k: int | None = None) -> list[dict[str, Any]]:
    return [item.to_dict() for item in load(bundle).rank(query, documents, top_k=top_k)]


def test_documents_of_the_command_line_are_ranked(run: Run, reranker_bundle: Path) -> None:
    result = run("rank", reranker_bundle, "--query", QUERY, *DOCUMENTS, "--json")
    assert result.exit_code == 0, result.output
    wanted = [{**item, "score": pytest.approx(item["score"])} for item in expected(reranker_bundle, QUERY, DOCUMENTS)]
    assert json.loads(result.stdout) == wanted
    lines = run("rank", reranker_bundle, "--query", QUERY, *DOCUMENTS, "--top-k", 1).stdout.splitlines()
    (best,) = expected(reranker_bundle, QUERY, DOCUMENTS, 1)
    assert lines == [f"{best['score']:.4f}\t{best['index']}\t{best['document']}"]


def test_rows_of_a_file_are_documents_or_queries(run: Run, reranker_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("it is lost\n\nthe bank is open\n", encoding="utf-8")
    result = run("rank", reranker_bundle, "--query", QUERY, "--input", tmp_path / "lines.txt", "--json")
    found = json.loads(result.stdout)
    assert {item["index"]: item["document"] for item in found} == {0: "it is lost", 1: "", 2: "the bank is open"}
    rows = [{"query": QUERY, "documents": DOCUMENTS}, {"query": "hello", "documents": DOCUMENTS[:2]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = run("rank", reranker_bundle, "--input", tmp_path / "rows.jsonl", "--json")
    assert [len(json.loads(line)) for line in result.stdout.splitlines()] == [3, 2]


def test_bad_rows_are_named(run: Run, reranker_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"query": "a", "documents": ["b"]}\n{"query": "a", "documents": ["\\ud800"]}\n', encoding="utf-8")
    result = run("rank", reranker_bundle, "--input", file)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 1
    assert f"{file}:2: input 0: the text holds a lone surrogate" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a"], "a DOCUMENT needs a --query"),
        (["--query", "a"], "expected DOCUMENT, or --input FILE"),
        (["a", "--query", "b", "--input", "c.txt"], "give either DOCUMENT or --input, not both"),
    ],
)
def test_wrong_usage(run: Run, reranker_bundle: Path, arguments: list[str], message: str) -> None:
    result = run("rank", reranker_bundle, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_other_tasks_are_refused(run: Run, embedding_bundle: Path) -> None:
    result = run("rank", embedding_bundle, "--query", "a", "b")
    assert result.exit_code == 1
    assert "found one for sentence-embedding" in result.stderr
