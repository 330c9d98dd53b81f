"""Retrieval data sets in BEIR's and TREC's formats, and what is wrong with others."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bert_runtime import DataError
from bert_runtime.records.retrieval import (
    RetrievalData,
    read_retrieval_data,
    read_retrieval_folder,
    read_run,
    write_run,
)

CORPUS = [
    {"_id": "d1", "title": "Cards", "text": "Lost cards are blocked."},
    {"_id": "d2", "title": "", "text": "We open at nine.", "metadata": {}},
    {"_id": 3, "text": "Refunds take five days."},
]
QUERIES = [{"_id": "q1", "text": "my card is gone"}, {"_id": "q2", "text": "refund"}, {"_id": "q3", "text": "unused"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\t3\t1\nq2\tgone\t1\n"


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(lines(CORPUS))
    (tmp_path / "queries.jsonl").write_text(lines(QUERIES))
    (tmp_path / "qrels" / "test.tsv").write_text(QRELS)
    return tmp_path


def read(folder: Path, qrels: str = "qrels/test.tsv") -> RetrievalData:
    return read_retrieval_data(folder / "corpus.jsonl", folder / "queries.jsonl", folder / qrels)


def test_beir_folder(folder: Path) -> None:
    data = read_retrieval_folder(folder)
    assert data.corpus == {
        "d1": "Cards Lost cards are blocked.",
        "d2": "We open at nine.",
        "3": "Refunds take five days.",
    }
    assert data.queries == {"q1": "my card is gone", "q2": "refund"}
    assert data.qrels == {"q1": {"d1": 2, "d2": 0}, "q2": {"3": 1, "gone": 1}}
    assert data.num_missing_documents == 1
    assert data == read(folder)


def test_compressed_files_and_trec_qrels(folder: Path) -> None:
    corpus = folder / "corpus.jsonl"
    with gzip.open(folder / "corpus.jsonl.gz", "wt") as stream:
        stream.write(corpus.read_text())
    expected = read_retrieval_folder(folder)
    corpus.unlink()
    assert read_retrieval_folder(folder).corpus == expected.corpus
    (folder / "qrels" / "test.tsv").rename(folder / "qrels.tsv")
    assert read_retrieval_folder(folder).qrels == expected.qrels
    (folder / "qrels.trec").write_text("q1 0 d1 2\nq1 0 d2 0\nq2 0 3 1\nq2 0 gone 1\n")
    corpus.write_text(lines(CORPUS))
    assert read(folder, "qrels.trec").qrels == expected.qrels


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("corpus.jsonl", lines([*CORPUS, CORPUS[0]]), r"corpus.jsonl:4: expected ids to be unique, found 'd1' again"),
        ("corpus.jsonl", '{"text": "a"}\n', r"corpus.jsonl:1: expected an id in '_id', found None"),
        ("corpus.jsonl", '{"_id": "a"}\n', r"corpus.jsonl:1: expected a field 'text', found only '_id'"),
        ("corpus.jsonl", "{\n", r"corpus.jsonl:1: not JSON"),
        ("corpus.jsonl", lines(CORPUS[1:2]), r"such as '3', found none of them"),
        ("queries.jsonl", lines(QUERIES[:1]), r"expected the 2 queries that .*test.tsv judges, found no 'q2'"),
        ("qrels/test.tsv", "", r"test.tsv: expected at least one judgement, found none"),
        ("qrels/test.tsv", "q1\td1\n", r"test.tsv:1: expected a query, a document and a grade, found 2 fields"),
        ("qrels/test.tsv", "q1\td1\t1\nq1\td2\tx\n", r"test.tsv:2: expected a number as the grade, found 'x'"),
        ("qrels/test.tsv", "query\tdocument\tgrade\nq1\td1\tx\n", r"test.tsv:2: expected a number as the grade, found"),
        ("qrels/test.tsv", "q1\td1\tnan\n", r"test.tsv:1: expected a number as the grade, found 'nan'"),
        ("qrels/test.tsv", "q1\td1\t0\n", r"test.tsv: expected a query with a relevant document \(grade 1 or more\)"),
        ("qrels/test.tsv", "q1\td1\t1\nq1\td1\t1\n", r"test.tsv:2: expected one grade a document, found 'd1' again"),
    ],
)
def test_malformed_files_are_refused(file: str, text: str, message: str, folder: Path) -> None:
    (folder / file).write_text(text)
    with pytest.raises(DataError, match=message):
        read_retrieval_folder(folder)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a folder with corpus.jsonl, found none"):
        read_retrieval_folder(tmp_path)


def test_runs_are_written_as_trec_reads_them(tmp_path: Path) -> None:
    path, run = tmp_path / "run.txt", {"q1": {"d1": 0.25, "d2": 0.5}, "q2": {"d1": -1.5}}
    write_run(path, run)
    assert path.read_text().splitlines()[:2] == ["q1 Q0 d2 1 0.5 bert-export", "q1 Q0 d1 2 0.25 bert-export"]
    assert read_run(path) == run
    with pytest.raises(DataError, match=r"run.txt: expected ids without white space, .* found 'd 1'"):
        write_run(path, {"q1": {"d 1": 1.0}})
    assert read_run(path) == run
    for score in ("high", "nan", "inf"):
        path.write_text(f"q1 Q0 d2 1 {score} name\n")
        with pytest.raises(DataError, match=rf"run.txt:1: expected a number as the score, found '{score}'"):
            read_run(path)
