"""Teachers, data files and settings that the distillation tests share."""

import json
from pathlib import Path
from typing import Any

import torch

from bert_models import EncoderConfig, TaskModel, save_model
from bert_models.training import TrainSettings
from bert_runtime.tasks import (
    FillMask,
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    Reranking,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

from ..toy import randomize

LABELS = ("greeting", "farewell", "question")


MASK = FillMask(mask_token="[MASK]", mask_token_id=4)


TEACHERS: dict[str, tuple[str, Task]] = {
    "single_label": ("bert", TextClassification(labels=LABELS)),
    "multi_label": ("bert", TextClassification(labels=LABELS, problem_type="multi_label")),
    "regression": ("bert", TextClassification(labels=("score",), problem_type="regression")),
    "next-sentence-prediction": ("bert", NextSentencePrediction()),
    "token-classification": ("bert", TokenClassification(labels=("O", "B-x", "I-x"))),
    "crf": ("bert", TokenClassification(labels=("O", "B-x", "I-x"), crf=True)),
    "question-answering": ("bert", QuestionAnswering()),
    "replaced-token-detection": ("electra", ReplacedTokenDetection()),
    "sentence-embedding": ("bert", SentenceEmbedding(dimensions=32)),
    "rerank": ("bert", Reranking()),
}


TEXTS = ["hello my card", "see you later", "what is the weather", "my book is lost", "good morning bank", "why not"]


ROWS: dict[str, list[dict[str, Any]]] = {
    "single_label": [{"text": text, "label": LABELS[i % 3]} for i, text in enumerate(TEXTS)],
    "multi_label": [{"text": text, "labels": [LABELS[i % 3]]} for i, text in enumerate(TEXTS)],
    "regression": [{"text": text, "score": i} for i, text in enumerate(TEXTS)],
    "next-sentence-prediction": [
        {"text": text, "text_pair": "the sun", "label": ("is_next", "not_next")[i % 2]} for i, text in enumerate(TEXTS)
    ],
    "rerank": [{"query": text, "documents": ["the sun", text], "scores": [0, 1]} for text in TEXTS],
    "token-classification": [
        {"tokens": text.split(), "tags": ["B-x", *["I-x"] * (len(text.split()) - 2), "O"]} for text in TEXTS
    ],
    "question-answering": [
        {"question": "what", "context": text, "answers": [{"text": text.split()[0], "answer_start": 0}]}
        for text in TEXTS
    ],
    "replaced-token-detection": [
        {"tokens": text.split(), "tags": ["replaced", *["original"] * (len(text.split()) - 1)]} for text in TEXTS
    ],
    "sentence-embedding": [
        {"text": text, "text_pair": other, "score": i}
        for i, (text, other) in enumerate(zip(TEXTS, reversed(TEXTS), strict=True))
    ],
}
ROWS["crf"] = ROWS["token-classification"]

SETTINGS = TrainSettings(epochs=6, batch_size=8, lr=3e-3, precision="fp32")


def write(path: Path, rows: list[dict[str, Any]], times: int = 1) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * times), encoding="utf-8")
    return path


def save_checkpoint(folder: Path, vocab: Path, config: EncoderConfig, task: Task) -> Path:
    """Save a model whose outputs differ clearly from text to text."""
    torch.manual_seed(3)
    model = TaskModel(config, task)
    randomize(model)
    folder.mkdir()
    save_model(model, folder, tokenizer_from=vocab)
    return folder
