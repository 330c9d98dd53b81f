"""Search documents by meaning: embed them once, then rank them by cosine similarity with each query.

Install:  nothing more
Index:    python semantic_search.py index minilm documents.txt index    (a document a line)
Search:   python semantic_search.py search minilm index "How do I get my money back?"

The search is exact: one matmul per query. A million documents of 384 dimensions are 1.5 GB, mapped from the
file; for many more, put the vectors into a vector database. Index and search with the same bundle.
"""

import argparse
from pathlib import Path

import numpy as np

from bert_runtime import Model, load


def build_index(model: Model, documents: list[str], index: Path) -> None:
    """Write the documents and their vectors, float32 [documents, dimensions], to a folder."""
    vectors = model.encode(documents, normalize=True, show_progress=True)
    index.mkdir(parents=True, exist_ok=True)
    np.save(index / "vectors.npy", vectors)
    (index / "documents.txt").write_text("".join(f"{document}\n" for document in documents), encoding="utf-8")


def search(model: Model, index: Path, query: str, top_k: int = 5) -> list[tuple[float, str]]:
    """Return the best `top_k` documents with their cosine similarity, best first."""
    vectors = np.load(index / "vectors.npy", mmap_mode="r")
    documents = (index / "documents.txt").read_text(encoding="utf-8").split("\n")
    scores = vectors @ model.encode([query], normalize=True)[0]
    best = np.argsort(-scores, kind="stable")[:top_k]
    return [(float(scores[i]), documents[i]) for i in best]


def main() -> None:
    parser = argparse.ArgumentParser(description="Search documents by meaning.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, files in {"index": ("documents", "index"), "search": ("index",)}.items():
        command = commands.add_parser(name)
        for argument in ("bundle", *files):
            command.add_argument(argument, type=Path)
    command.add_argument("query")
    command.add_argument("--top", type=int, default=5)
    arguments = parser.parse_args()
    model = load(arguments.bundle)
    if arguments.command == "index":
        lines = arguments.documents.read_text(encoding="utf-8").splitlines()
        build_index(model, [line for line in lines if line.strip()], arguments.index)
        return
    for score, document in search(model, arguments.index, arguments.query, arguments.top):
        print(f"{score:.3f}\t{document}")


if __name__ == "__main__":
    main()
