"""`MTEBEncoder`: MTEB runs a bundle on a tiny task of its own, offline."""

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bert_runtime import InputError, Model, SentenceEmbedding, load
from bert_runtime.metrics import retrieval_metrics
from bert_runtime.mteb import MTEBEncoder
from bert_runtime.records.retrieval import RetrievalData
from bert_runtime.retrieval import retrieve

DOCUMENTS = {f"d{i}": f"my {word} is at the bank" for i, word in enumerate(("card", "money", "time", "help"))}
QUERIES = {f"q{i}": f"where is the {word}?" for i, word in enumerate(("card", "money", "time"))}
QRELS = {f"q{i}": {f"d{i}": 1} for i in range(3)}


def batches(texts: list[str]) -> Iterator[dict[str, list[str]]]:
    """What MTEB's data loader yields, two texts at a time."""
    for start in range(0, len(texts), 2):
        yield {"text": texts[start : start + 2]}


def encoded(encoder: MTEBEncoder, kind: str | None = None, name: str = "Toy", kind_of_task: str = "Retrieval") -> Any:
    prompt_type = None if kind is None else SimpleNamespace(value=kind)
    metadata = SimpleNamespace(name=name, type=kind_of_task)
    return encoder.encode(batches(list(QUERIES.values())), task_metadata=metadata, prompt_type=prompt_type).tolist()


@pytest.fixture(scope="module")
def plain(embedding_bundle: Path) -> Model:
    return load(embedding_bundle, precision="fp32", threads=1)


def expected(plain: Model, prompt: str) -> list[list[float]]:
    return plain.encode([prompt + text for text in QUERIES.values()]).tolist()


def test_prompts_are_chosen_by_task_and_kind(prompted_bundle: Path, plain: Model) -> None:
    encoder = MTEBEncoder(prompted_bundle, threads=1)
    assert encoded(encoder) == expected(plain, "card: ")
    assert encoded(encoder, "query") == expected(plain, "question ")
    assert encoded(encoder, "document") == expected(plain, "card: ")
    assert encoded(MTEBEncoder(plain), "query") == expected(plain, "")
    prompts = {"Toy-query": "a ", "Toy": "b ", "STS-query": "c ", "STS": "d ", "query": "e "}
    model = load(prompted_bundle, threads=1)
    object.__setattr__(model.task, "prompts", prompts)
    object.__setattr__(model.task, "prompt_name", None)
    encoder = MTEBEncoder(model)
    assert encoded(encoder, "query") == expected(plain, "a ")
    assert encoded(encoder, "document") == encoded(encoder) == expected(plain, "b ")
    assert encoded(encoder, "query", "Other", "STS") == expected(plain, "c ")
    assert encoded(encoder, "document", "Other", "STS") == expected(plain, "d ")
    assert encoded(encoder, "query", "Other", "Other") == expected(plain, "e ")


def test_models_whose_pooling_leaves_prompts_out_get_none(prompted_bundle: Path, plain: Model) -> None:
    """Instructor models have prompts, which bundles refuse; an evaluation chooses none of them."""
    model = copy(load(prompted_bundle, threads=1))
    assert isinstance(model.task, SentenceEmbedding)
    prompts = {"query": "a ", "document": "b ", "Toy": "c "}
    model.task = replace(model.task, prompts=prompts, prompt_name=None, include_prompt=False)
    encoder = MTEBEncoder(model)
    for kind in ("query", "document", None):
        assert encoded(encoder, kind) == encoded(encoder, kind, "Other") == expected(plain, "")
    data = RetrievalData(corpus=DOCUMENTS, queries=QUERIES, qrels=QRELS, path=Path("qrels.tsv"))
    assert retrieve(model, data) == retrieve(plain, data)


def test_similarities_are_tensors(plain: Model) -> None:
    encoder, vectors = MTEBEncoder(plain), plain.encode(list(QUERIES.values()))
    assert encoder.similarity(vectors, vectors).numpy() == pytest.approx(vectors @ vectors.T, abs=1e-6)
    assert encoder.similarity_pairwise(vectors, vectors).numpy() == pytest.approx(1, abs=1e-6)


def test_other_bundles_are_refused(classifier_bundle: Path) -> None:
    with pytest.raises(InputError, match="MTEB needs a bundle for sentence-embedding, found one for text-classificat"):
        MTEBEncoder(classifier_bundle)


@pytest.mark.filterwarnings("default")
def test_mteb_runs_a_bundle(prompted_bundle: Path) -> None:
    """Its nDCG and recall are ours."""
    mteb = pytest.importorskip("mteb", reason="mteb is not installed")
    datasets = pytest.importorskip("datasets")
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class Toy(AbsTaskRetrieval):  # type: ignore[misc] # mteb is not installed where types are checked
        metadata = TaskMetadata(
            name="Toy",
            description="Sentences of a toy vocabulary.",
            reference=None,
            dataset={"path": "toy", "revision": "1"},
            type="Retrieval",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
            date=None,
            domains=None,
            task_subtypes=None,
            license=None,
            annotations_creators=None,
            dialect=None,
            sample_creation=None,
            bibtex_citation=None,
        )

        def load_data(self, *args: Any, **kwargs: Any) -> None:
            corpus = [{"id": key, "title": "", "text": text} for key, text in DOCUMENTS.items()]
            queries = [{"id": key, "text": text} for key, text in QUERIES.items()]
            split = {
                "corpus": datasets.Dataset.from_list(corpus),
                "queries": datasets.Dataset.from_list(queries),
                "relevant_docs": QRELS,
                "top_ranked": None,
            }
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    encoder = MTEBEncoder(prompted_bundle, threads=1)
    assert encoder.mteb_model_meta.embed_dim == 32
    results = mteb.evaluate(encoder, Toy(), cache=None, overwrite_strategy="always")
    scores = results.task_results[0].scores["test"][0]
    data = RetrievalData(corpus=DOCUMENTS, queries=QUERIES, qrels=QRELS, path=Path("toy"))
    found = retrieval_metrics(retrieve(encoder.model, data), QRELS, recall_at=(1, 3))
    for name, value in found.items():
        assert scores[name] == pytest.approx(value, abs=1e-4), name
    assert 0 < np.mean([scores[name] for name in found]) <= 1
