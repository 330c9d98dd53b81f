"""Rerank passages for a query with a cross-encoder: the second stage of a search, more exact than embeddings.

Install:  nothing more
Export:   bert-export export cross-encoder/ms-marco-MiniLM-L6-v2 reranker
Run:      python rerank.py reranker "How do I get my money back?" < passages.txt    (a passage a line)

Any checkpoint that gives pairs of texts one score will do. The model reads the query together with each passage, so
the time grows with their number: rerank the best 20 to 100 of a first stage, such as semantic_search.py.
"""

import argparse
import sys
from pathlib import Path

from bert_runtime import load


def main() -> None:
    parser = argparse.ArgumentParser(description="Rerank the passages of stdin.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("query")
    parser.add_argument("--top", type=int, default=10)
    arguments = parser.parse_args()
    passages = [line for line in sys.stdin.read().splitlines() if line.strip()]
    for item in load(arguments.bundle).rank(arguments.query, passages, top_k=arguments.top):
        print(f"{item.score:8.3f}\t{item.document}")


if __name__ == "__main__":
    main()
