"""Outputs of toy models of every task for labelled examples, without graphs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_runtime.evaluation import build_examples, run_examples
from bert_runtime.records import Record
from bert_runtime.tasks import (
    Example,
    FillMask,
    NextSentencePrediction,
    Outputs,
    QuestionAnswering,
    ReplacedTokenDetection,
    Reranking,
    SentenceEmbedding,
    SparseEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)
from bert_runtime.tokenization import Batch

from ...runtime.task_models import RandomRunner, with_runner, wordpiece

LABELS = ("greeting", "farewell", "question")
MASK_ID = 4

TEXTS = [f"{start} {middle} {i}" for i in range(8) for start in ("hello", "bye") for middle in ("my card", "the bus")]
TAGGED = ("O", "B-item", "I-item", "B-place")


class FirstTokenRunner(RandomRunner):
    """Random outputs per sequence [B, …]."""

    def run(self, batch: Batch) -> NDArray[np.float32]:
        return super().run(batch)[:, 0]


class MaskRunner(RandomRunner):
    """Random outputs at the masks alone [masks, vocabulary]."""

    def run(self, batch: Batch) -> NDArray[np.float32]:
        return super().run(batch)[batch.input_ids == MASK_ID]


def _cycle(names: Sequence[str], count: int) -> list[str]:
    return [names[i % len(names)] for i in range(count)]


def _squad(text: str, number: int) -> dict[str, Any]:
    answers = [{"text": "the bank", "answer_start": 11}] if number % 3 else []
    return {"question": text, "context": "my card at the bank is late", "answers": answers}


_WORDS = ["my", "card", "is", "\u200b", "late", "bank"]

CASES: dict[str, tuple[Task, RandomRunner, list[dict[str, Any]]]] = {
    "single_label": (
        TextClassification(labels=LABELS),
        FirstTokenRunner(3),
        [{"text": text, "label": label} for text, label in zip(TEXTS, _cycle(LABELS, len(TEXTS)), strict=True)],
    ),
    "multi_label": (
        TextClassification(labels=LABELS, problem_type="multi_label", thresholds=(0.3, 0.5, 0.6)),
        FirstTokenRunner(3),
        [{"text": text, "labels": list(LABELS[: i % 4])} for i, text in enumerate(TEXTS)],
    ),
    "regression": (
        TextClassification(labels=("score",), problem_type="regression"),
        FirstTokenRunner(1),
        [{"text": text, "score": i / 3} for i, text in enumerate(TEXTS)],
    ),
    "token-classification": (
        TokenClassification(labels=TAGGED),
        RandomRunner(4),
        [{"tokens": [*_WORDS, text], "tags": _cycle(TAGGED, 7)} for text in ("bus", "train", "sun")],
    ),
    "crf": (
        TokenClassification(labels=("B-a", "I-a"), crf=True, transitions=((0.5, 1.0), (-1.0, 0.2), (0, 0), (0, 1.0))),
        RandomRunner(2),
        [{"tokens": [*_WORDS, text], "tags": _cycle(("B-a", "I-a"), 7)} for text in ("bus", "train", "sun")],
    ),
    "question-answering": (
        QuestionAnswering(no_answer=True, max_answer_tokens=3),
        RandomRunner(2),
        [_squad(text, number) for number, text in enumerate(TEXTS)],
    ),
    "fill-mask": (
        FillMask(mask_token="[MASK]", mask_token_id=MASK_ID),
        MaskRunner(200),
        [{"text": f"[MASK] {text} [MASK]", "labels": ["card", "bus"]} for text in TEXTS],
    ),
    "next-sentence-prediction": (
        NextSentencePrediction(),
        FirstTokenRunner(2),
        [{"text": text, "text_pair": "why", "label": ("is_next", "not_next")[i % 2]} for i, text in enumerate(TEXTS)],
    ),
    "replaced-token-detection": (
        ReplacedTokenDetection(threshold=0.4),
        RandomRunner(),
        [{"tokens": [*_WORDS, text], "tags": _cycle(("original", "replaced"), 7)} for text in ("bus", "train", "sun")],
    ),
    "sentence-embedding": (
        SentenceEmbedding(dimensions=8),
        FirstTokenRunner(8),
        [{"text": text, "text_pair": f"why {text}", "score": i} for i, text in enumerate(TEXTS)],
    ),
    "ranked embeddings": (
        SentenceEmbedding(dimensions=8),
        FirstTokenRunner(8),
        [{"text": text, "text_pair": f"is it {text}?"} for text in TEXTS],
    ),
    "sparse-embedding": (
        SparseEmbedding(vocab_size=8),
        FirstTokenRunner(8),
        [{"text": text, "text_pair": text if i % 4 else f"why {text}"} for i, text in enumerate(TEXTS)],
    ),
    "rerank": (
        Reranking(),
        FirstTokenRunner(1),
        [{"query": "why", "documents": [text, "bus"], "scores": [i % 2, 1]} for i, text in enumerate(TEXTS)],
    ),
}
"""A task, a model and labelled rows by name."""


def outputs_and_examples(name: str, vocab: Path, **options: Any) -> tuple[Task, list[Outputs], list[Example]]:
    """Return a case's task, with other decoding options, and its outputs for its examples."""
    task, runner, rows = CASES[name]
    task = task.with_options(**options)
    model = with_runner(runner, task, wordpiece(vocab), 64)
    examples = build_examples(task, model.tokenizer, records(rows))
    return task, run_examples(model, examples), examples


def records(rows: Sequence[Mapping[str, Any]]) -> list[Record]:
    return [Record(row, Path("data.jsonl"), line) for line, row in enumerate(rows, start=1)]
