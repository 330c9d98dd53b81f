"""Turn SQuAD files into a retrieval data set in BEIR's format: find the paragraph that answers a question.

Install:  nothing more
Convert:  python squad_retrieval.py dev-v1.1.json squad
Evaluate: bert-export evaluate minilm squad

The corpus are the paragraphs, with their article's title; the queries are the questions, and the relevant document of a
question is its paragraph. Questions of SQuAD 2 that their paragraph does not answer are left out.
"""

import argparse
import json
from pathlib import Path

from bert_runtime import read_records


def convert(files: list[Path], folder: Path) -> tuple[int, int]:
    """Write corpus.jsonl, queries.jsonl and qrels/test.tsv; return the number of documents and of queries."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    documents: dict[str, dict[str, str]] = {}
    queries: list[dict[str, str]] = []
    judgements = ["query-id\tcorpus-id\tscore"]
    for record in (record for file in files for record in read_records(file)):
        if not record.answers():
            continue
        context = record.text("context")
        title = record.optional_text("title") or ""
        document = documents.setdefault(
            context, {"_id": f"d{len(documents)}", "title": title.replace("_", " "), "text": context}
        )
        query = {"_id": f"q{len(queries)}", "text": record.text("question")}
        queries.append(query)
        judgements.append(f"{query['_id']}\t{document['_id']}\t1")
    for name, rows in {"corpus": list(documents.values()), "queries": queries}.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text("\n".join(judgements) + "\n", encoding="utf-8")
    return len(documents), len(queries)


def main() -> None:
    parser = argparse.ArgumentParser(description="Turn SQuAD files into a retrieval data set.")
    parser.add_argument("files", type=Path, nargs="+", help="SQuAD 1.1 or 2.0 (.json, .json.gz)")
    parser.add_argument("folder", type=Path, help="folder to write")
    arguments = parser.parse_args()
    num_documents, num_queries = convert(arguments.files, arguments.folder)
    print(f"{arguments.folder}: {num_documents:,} documents, {num_queries:,} queries")


if __name__ == "__main__":
    main()
