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
from typing import NamedTuple

from bert_runtime import Model, Regression, load


class Ranked(NamedTuple):
    """A passage with its score; scores of one query are comparable, those of two are not."""

    score: float
    passage: str


def rerank(model: Model, query: str, passages: list[str], top_k: int | None = None) -> list[Ranked]:
    """Return the passages, the most relevant first, at most `top_k`.

    One call scores all pairs: the model sorts them by length into batches and uses all of its threads.
    """
    ranked = []
    for result, passage in zip(model([(query, passage) for passage in passages]), passages, strict=True):
        if not isinstance(result, Regression):
            raise TypeError(f"expected a bundle that gives a pair one score, found {model}")
        ranked.append(Ranked(result.score, passage))
    return sorted(ranked, key=lambda pair: pair.score, reverse=True)[:top_k]


def main() -> None:
    parser = argparse.ArgumentParser(description="Rerank the passages of stdin.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("query")
    parser.add_argument("--top", type=int, default=10)
    arguments = parser.parse_args()
    passages = [line for line in sys.stdin.read().splitlines() if line.strip()]
    for ranked in rerank(load(arguments.bundle), arguments.query, passages, arguments.top):
        print(f"{ranked.score:8.3f}\t{ranked.passage}")


if __name__ == "__main__":
    main()
