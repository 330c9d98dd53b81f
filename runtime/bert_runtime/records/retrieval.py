"""Read retrieval data sets: a corpus, queries, and relevance judgements (qrels), in BEIR's and TREC's formats."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from bert_runtime.errors import DataError
from bert_runtime.records.lines import numbered_lines
from bert_runtime.records.open_text import open_text
from bert_runtime.records.reader import iter_rows
from bert_runtime.records.record import Record

__all__ = ["RetrievalData", "check_run_ids", "read_retrieval_data", "read_retrieval_folder", "read_run", "write_run"]

_QRELS_NAMES = ("qrels/test.tsv", "qrels/dev.tsv", "qrels/train.tsv", "qrels.tsv", "qrels.txt")
"""Files of a BEIR folder that hold judgements; the first one that exists is read."""


@dataclass(frozen=True, kw_only=True)
class RetrievalData:
    """Documents, queries, and which documents are relevant for each query."""

    corpus: Mapping[str, str]
    """Texts of the documents by their ids: the title, if there is one, a space, and the text, as BEIR joins them."""
    queries: Mapping[str, str]
    """Texts of the queries that have judgements, by their ids."""
    qrels: Mapping[str, Mapping[str, float]]
    """Grade of each judged document by the ids of query and document; 1 and more is relevant."""
    path: Path
    """The file of judgements."""

    def is_itself(self, query: str, document: str) -> bool:
        """Return whether a query is a document of the corpus, under the same id, that is not judged for it."""
        return (
            query == document
            and document not in self.qrels.get(query, {})
            and self.corpus[document].endswith(self.queries[query])
        )

    @property
    def num_missing_documents(self) -> int:
        """Number of relevant documents that the corpus lacks, which no model can find."""
        judged = {document for grades in self.qrels.values() for document, grade in grades.items() if grade >= 1}
        return len(judged - self.corpus.keys())


def read_retrieval_folder(folder: Path) -> RetrievalData:
    """Read a BEIR folder: `corpus.jsonl`, `queries.jsonl`, and `qrels/test.tsv` or another of `qrels/`.

    Raises:
        DataError: a file is missing or malformed; see `read_retrieval_data`.
    """

    def find(*names: str) -> Path:
        paths = [folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz")]
        if (path := next((path for path in paths if path.is_file()), None)) is None:
            raise DataError(f"{folder}: expected a folder with {' or '.join(names)}, found none")
        return path

    return read_retrieval_data(find("corpus.jsonl"), find("queries.jsonl"), find(*_QRELS_NAMES))


def read_retrieval_data(corpus: Path, queries: Path, qrels: Path) -> RetrievalData:
    """Read a corpus, queries and judgements.

    Args:
        corpus: rows with `_id`, `text` and optionally `title`: JSONL, or CSV or TSV with a header; `.gz` of each.
        queries: rows with `_id` and `text`. Those without judgements are left out.
        qrels: lines of query, document and grade between tabs, with a header or without (BEIR); or of query, iteration,
            document and grade between spaces (TREC).

    Raises:
        DataError: a file is missing or malformed, an id is repeated, a judged query has no text, or none of the
            relevant documents is in the corpus.
    """
    judged = _read_qrels(qrels)
    texts = _texts_by_id(queries)
    if unknown := sorted(judged.keys() - texts.keys()):
        raise DataError(
            f"{queries}: expected the {len(judged)} queries that {qrels} judges, found no {unknown[0]!r} "
            f"({len(unknown)} are missing)"
        )
    documents = _texts_by_id(corpus)
    found = {query: texts[query] for query in judged}
    data = RetrievalData(corpus=documents, queries=found, qrels=judged, path=qrels)
    relevant = {document for grades in judged.values() for document, grade in grades.items() if grade >= 1}
    if not relevant:
        raise DataError(f"{qrels}: expected a query with a relevant document (grade 1 or more), found none")
    if not relevant & documents.keys():
        raise DataError(
            f"{corpus}: expected documents that {qrels} judges to be relevant, such as {min(relevant)!r}, found none "
            "of them"
        )
    return data


def _texts_by_id(path: Path) -> dict[str, str]:
    """Return the texts of a file by the ids in `_id`, titles in front."""
    texts: dict[str, str] = {}
    for record in iter_rows(path):
        if isinstance(record, DataError):
            raise record
        key = _id(record)
        if key in texts:
            raise DataError(f"{record.where}: expected ids to be unique, found {key!r} again")
        texts[key] = f"{record.optional_text('title') or ''} {record.text()}".strip()
    return texts


def _id(record: Record) -> str:
    value = record.fields.get("_id", record.fields.get("id"))
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise DataError(f"{record.where}: expected an id in '_id', found {value!r:.50}")
    return str(value)


def _read_qrels(path: Path) -> dict[str, dict[str, float]]:
    qrels: dict[str, dict[str, float]] = {}
    for index, (location, parts) in enumerate(_fields(path, (3, 4), "a query, a document and a grade")):
        query, document, grade = parts[0], parts[-2], parts[-1]
        if index == 0 and _parse(grade) is None:  # the header of BEIR's files
            continue
        value = _number(grade, location, "grade")
        if document in qrels.setdefault(query, {}):
            raise DataError(f"{location}: expected one grade a document, found {document!r} again for {query!r}")
        qrels[query][document] = value
    if not qrels:
        raise DataError(f"{path}: expected at least one judgement, found none")
    return qrels


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Read retrieved documents in TREC's format: query, `Q0`, document, rank, score and a name, between spaces.

    Returns:
        The score of each document by the ids of query and document.

    Raises:
        DataError: the file is missing or malformed.
    """
    run: dict[str, dict[str, float]] = {}
    for location, parts in _fields(path, (6,), "a query, Q0, a document, a rank, a score and a name"):
        run.setdefault(parts[0], {})[parts[2]] = _number(parts[4], location, "score")
    return run


def _number(text: str, location: str, name: str) -> float:
    """Return a field as a finite number, or raise `DataError`."""
    value = _parse(text)
    if value is None or not math.isfinite(value):
        raise DataError(f"{location}: expected a number as the {name}, found {text!r:.50}")
    return value


def _parse(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def check_run_ids(path: Path, ids: Iterable[str]) -> None:
    """Raise `DataError` for an id that `write_run` cannot write, since white space separates the format's fields."""
    for name in ids:
        if len(name.split()) != 1:
            raise DataError(f"{path}: expected ids without white space, as TREC's format has them, found {name!r:.80}")


def write_run(path: Path, run: Mapping[str, Mapping[str, float]]) -> None:
    """Write retrieved documents in TREC's format, see `read_run`.

    Raises:
        DataError: see `check_run_ids`.
    """
    from bert_runtime.bundle.atomic_files import atomic_write
    from bert_runtime.metrics import rank_documents

    check_run_ids(path, chain(run, *run.values()))
    with atomic_write(path) as stream:
        for query, scores in run.items():
            for rank, document in enumerate(rank_documents(scores), start=1):
                stream.write(f"{query} Q0 {document} {rank} {scores[document]:.9g} bert-export\n")


def _fields(path: Path, counts: tuple[int, ...], expected: str) -> Iterator[tuple[str, list[str]]]:
    """Yield where each line is and its fields, which tabs separate, or else white space."""
    with open_text(path) as stream:
        for number, line in numbered_lines(stream):
            if isinstance(line, DataError):
                raise line
            if not line.strip():
                continue
            parts = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
            if len(parts) not in counts:
                raise DataError(
                    f"{path}:{number}: expected {expected}, found {len(parts)} fields: {line.strip()!r:.80}"
                )
            yield f"{path}:{number}", parts
