"""A toy bundle of every task."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bert_models import EncoderConfig, TaskModel, save_model
from bert_runtime.tasks import (
    FeatureExtraction,
    FillMask,
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    Reranking,
    SentenceEmbedding,
    SparseEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

from .made_once import made_once

TOY_TASKS: dict[str, Task] = {
    "text-classification": TextClassification(labels=("greeting", "farewell", "question")),
    "token-classification": TokenClassification(labels=("O", "B-city", "I-city")),
    "question-answering": QuestionAnswering(),
    "fill-mask": FillMask(mask_token="[MASK]", mask_token_id=4),
    "next-sentence-prediction": NextSentencePrediction(),
    "replaced-token-detection": ReplacedTokenDetection(),
    "sentence-embedding": SentenceEmbedding(dimensions=32),
    "sparse-embedding": SparseEmbedding(vocab_size=1),
    "rerank": Reranking(),
    "feature-extraction": FeatureExtraction(hidden_size=1, num_layers=1, layers=(1,)),
    "reranker": TextClassification(labels=("relevance",), problem_type="regression"),
    "two-labels": TextClassification(labels=("no", "yes")),
    "nli": TextClassification(labels=("contradiction", "neutral", "entailment")),
    "multi-label": TextClassification(labels=("joy", "anger", "love"), problem_type="multi_label"),
}
"""Tasks by the name of their bundle: each task under its own, and classifiers of other kinds."""


@dataclass(frozen=True)
class TaskBundles:
    """FP32 bundles of `TOY_TASKS`, each made when it is first asked for.

    Args:
        cache: the folder to make them in.
        vocabulary: a folder with the tokenizer's vocabulary.
        config: configuration of their encoder.
    """

    cache: Path
    vocabulary: Path
    config: EncoderConfig

    def __getitem__(self, name: str) -> Path:
        from bert_export import export

        checkpoint = self.checkpoint(name)
        task = name if name == FeatureExtraction.name else None  # no head says so
        return made_once(self.cache / name, lambda folder: export(checkpoint, folder, task=task, precisions=["fp32"]))

    def checkpoint(self, name: str) -> Path:
        """Return the folder of the checkpoint that a bundle is made of: random weights, large enough to decide."""

        def save(folder: Path) -> None:
            torch.manual_seed(7)
            family = "electra" if name == "replaced-token-detection" else "bert"
            task = TOY_TASKS[name]
            if isinstance(task, SparseEmbedding):
                task = replace(task, vocab_size=self.config.vocab_size)
            if isinstance(task, FeatureExtraction):
                task = replace(task, hidden_size=self.config.hidden_size)
            model = TaskModel(replace(self.config, family=family), task).eval()
            folder.mkdir()
            save_model(model, folder, tokenizer_from=self.vocabulary)

        return made_once(self.cache / f"{name} checkpoint", save)
