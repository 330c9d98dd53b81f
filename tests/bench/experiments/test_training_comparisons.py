"""Comparisons of training with sentence-transformers: measured in parts, and their tables."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert_bench.experiments import (
    embedding_training,
    fine_tuning_vs_transformers,
    ranking_training,
    rerank_training,
    sparse_training,
)
from bert_bench.experiments.harness import unfinished_result
from bert_models.training.relevance import relevance_examples
from bert_runtime.records import read_records

REQUEST = {"rows": 4, "settings": {"lr": 0.1, "sizes": (1, 2)}}


def test_a_result_is_gone_on_with_where_sizes_and_settings_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert unfinished_result(path, REQUEST, ["ours"]) == {
        "rows": 4,
        "settings": {"lr": 0.1, "sizes": [1, 2]},
        "ours": [],
    }
    path.write_text(json.dumps({"conditions": {}, **REQUEST, "ours": [{"seed": 0}], "base": 1}), encoding="utf-8")
    found = unfinished_result(path, REQUEST, ["ours"])
    assert (found["ours"], found["base"], "conditions" in found) == ([{"seed": 0}], 1, False)
    assert unfinished_result(path, {**REQUEST, "rows": 5}, ["ours"])["ours"] == []


def test_sparse_rows_have_each_paragraph_once_and_another_as_negative(tmp_path: Path) -> None:
    paragraphs = [
        {"context": f"paragraph {number}", "qas": [_question(f"{number}{letter}") for letter in "ab"]}
        for number in range(3)
    ]
    squad = tmp_path / "squad.json"
    squad.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}), encoding="utf-8")
    assert ranking_training.write_rows(squad, tmp_path / "pairs.jsonl", 2) == 2
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len({row["text_pair"] for row in rows}) == len(rows) == 2
    assert all(row["text"][0] == row["text_pair"][-1] != row["negative"][-1] for row in rows)
    assert ranking_training.write_rows(squad, tmp_path / "pairs.jsonl", 9) == 3


@pytest.mark.parametrize(("kind", "num_rows"), [("pairs", 6), ("triples", 2), ("lists", 2)])
def test_rerank_rows_of_each_kind_are_read_by_both_trainers(kind: str, num_rows: int, tmp_path: Path) -> None:
    paragraphs = [{"context": f"paragraph {number}", "qas": [_question(f"{number}")]} for number in range(10)]
    squad, path = tmp_path / "squad.json", tmp_path / "rows.jsonl"
    squad.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}), encoding="utf-8")
    rerank_training.write_training_rows(squad, path, 2, 2, kind)
    examples = relevance_examples(read_records(path))
    assert len(examples) == num_rows
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    columns = [rerank_training.their_columns(row) for row in rows]
    for example, theirs in zip(examples, columns, strict=True):
        documents = theirs.get("docs") or [theirs["text_pair"]]
        assert documents == [pair.text_pair for pair in example.inputs]


def _question(name: str) -> dict[str, Any]:
    return {"id": name, "question": name, "answers": [{"text": "p", "answer_start": 0}]}


def run(ndcg: float) -> dict[str, Any]:
    metrics = {"ndcg_at_10": ndcg, "mrr_at_10": 0.5, "weights_per_text": 3, "weights_per_text_pair": 9}
    return {"seed": 0, "train_s": 4, "fp32": metrics, "int8": metrics}


def runs(*ndcg: float) -> dict[str, Any]:
    return {"bert-export": list(map(run, ndcg)), "sentence-transformers": [], "embeddings": run(0)["fp32"]}


def test_sparse_table_averages_over_seeds_and_leaves_out_who_did_not_run(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**runs(0.25, 0.75), "base": run(0.125)}), encoding="utf-8")
    table = " ".join(sparse_training.results_table(path).split())
    assert "| `bert-export train` | 0.5000 | 0.5000 |" in table
    assert "sentence-transformers" not in table


def test_embedding_table_has_all_seeds(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**runs(0.25, 0.75), "base": run(0.125)}), encoding="utf-8")
    table = " ".join(embedding_training.results_table(path).split())
    assert "| `bert-export train` | 0.2500, 0.7500 | 0.2500, 0.7500 | 0.5000, 0.5000 | 4 |" in table
    assert "sentence-transformers" not in table


@pytest.mark.parametrize(("values", "kind"), [({}, "pairs"), ({"row_kind": "lists"}, "lists")])
def test_rerank_table_has_all_seeds_and_names_the_kind_of_rows(
    values: dict[str, str], kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    result = {**runs(0.25, 0.75), **values, "sentence-transformers": [run(0.625)]}
    path.write_text(json.dumps(result), encoding="utf-8")
    lines = [
        [cell.strip() for cell in line.split("|")[1:3]] for line in rerank_training.results_table(path).split("\n")
    ]
    assert lines[2:] == [
        ["by chance", "0.4544"],
        ["embeddings of the base, cosine", "0.0000"],
        [f"`bert-export train`, {kind}", "0.2500, 0.7500"],
        [f"sentence-transformers, {kind}", "0.6250"],
    ]


def test_folders_of_base_checkpoints_have_rows_of_their_own(tmp_path: Path) -> None:
    def write(folder: str, side: str, seed: int, accuracy: float) -> None:
        values = {"metric": "accuracy", "best": {"accuracy": accuracy}, "settings": {"seed": seed}}
        path = tmp_path / folder / f"sst2-{side}-{seed}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")

    for seed, accuracy in enumerate((0.5, 0.75)):
        write("modernbert", "ours", seed, accuracy)
        write("modernbert", "transformers", seed, 0.25)
    write("deberta-v2", "ours", 0, 1.0)
    table = " ".join(fine_tuning_vs_transformers.results_table(tmp_path).split())
    assert "| modernbert, sst2 | accuracy | 2 | 0.5000, 0.7500 | 0.2500, 0.2500 | +0.3750 |" in table
    assert "deberta" not in table  # the other class has no result
