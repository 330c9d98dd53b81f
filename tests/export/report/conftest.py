"""Reports of the toy bundles, measured once."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from bert_export.report import Report, measure_report
from bert_runtime import Model, load

from .toy_outputs import LABELS, TEXTS

WORDS = "the an is are was i you card bank money lost help thanks hello hi good bye later how what train bus rain"
HOSTILE = '<script>alert("x")</script>'


def close_texts(model: Model, count: int) -> list[str]:
    """Return texts for which the two best labels are almost equally probable, so that INT8 changes some."""
    generator = random.Random(0)
    texts = [" ".join(generator.choices(WORDS.split(), k=generator.randint(2, 6))) for _ in range(500)]
    tops = [np.sort(output.flat)[-2:] for output in model.outputs(texts)]
    order = sorted(range(len(texts)), key=lambda i: tops[i][1] - tops[i][0])
    return [texts[i] for i in order[:count]]


@pytest.fixture(scope="session")
def labelled_file(tmp_path_factory: pytest.TempPathFactory, classifier_bundle: Path) -> Path:
    """33 rows with the labels that FP32 predicts, every fourth of them wrong; one text is markup."""
    path = tmp_path_factory.mktemp("labelled") / "dev.jsonl"
    model = load(classifier_bundle, precision="fp32", threads=1)
    texts = [*close_texts(model, 32), HOSTILE]
    labels = [result.to_dict()["label"] for result in model(texts)]
    rows = [
        {"text": text, "label": label if i % 4 else LABELS[(LABELS.index(label) + 1) % 3]}
        for i, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def classifier_report(classifier_bundle: Path, labelled_file: Path) -> Report:
    """The report of the toy classifier with a labelled file."""
    return measure_report(classifier_bundle, evaluate=labelled_file, threads=1, rounds=1)


@pytest.fixture(scope="session")
def embedding_report(embedding_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of the toy embeddings with a labelled file."""
    path = tmp_path_factory.mktemp("labelled") / "pairs.jsonl"
    rows = [{"text": text, "text_pair": "hello why", "score": i} for i, text in enumerate(TEXTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return measure_report(embedding_bundle, evaluate=path, threads=1, rounds=1)
