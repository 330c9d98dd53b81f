"""What the corpus tests share: reading a corpus into lists, and writing its files."""

import gzip
from pathlib import Path

from bert_models.corpus import Corpus


def documents(corpus: Corpus) -> list[list[str]]:
    found: list[list[str]] = []
    for sentence in corpus.sentences():
        if sentence.starts_document:
            found.append([])
        found[-1].append(sentence.text)
    return found


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
