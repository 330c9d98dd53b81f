"""What is pre-trained: an encoder under the heads of an objective, and the losses of a batch.

Letters in shapes: B sequences in the batch, S tokens per sequence, M tokens that are predicted, H hidden size.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_models.config import EncoderConfig
from bert_models.heads import ClassificationHead, MaskedLmHead
from bert_models.model import TaskModel
from bert_models.saving import save_model
from bert_models.training.run_dir import GENERATOR_FOLDER
from bert_runtime.tasks import FillMask, NextSentencePrediction, ReplacedTokenDetection

__all__ = [
    "DISCRIMINATOR_WEIGHT",
    "IGNORE_INDEX",
    "MaskedLanguageModel",
    "MetricSum",
    "PretrainingModel",
    "ReplacedTokenModel",
    "classification_metrics",
    "generator_config",
    "mean",
    "mlm_metrics",
    "weighted_loss",
]

DISCRIMINATOR_WEIGHT = 50.0
"""The weight of the discriminator's loss beside the generator's (Clark et al., arXiv:2003.10555, section 3.2)."""

IGNORE_INDEX = -100
"""The label of a token that is not predicted."""


class MetricSum(NamedTuple):
    """Sums over a batch: of losses or of right predictions, and over how many."""

    total: Tensor
    number: Tensor


class PretrainingModel(nn.Module, ABC):
    """An encoder with the heads of one objective."""

    config: EncoderConfig

    @abstractmethod
    def measure(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, labels: Tensor, sentence_labels: Tensor
    ) -> dict[str, MetricSum]:
        """Losses (`…_loss`) and right decisions (`…_accuracy`) of a batch.

        ids, mask, segments, labels: int64 [B, S], labels -100 where nothing is predicted; sentence_labels: int64 [B].
        """

    @abstractmethod
    def loss(self, measured: dict[str, MetricSum]) -> Tensor:
        """What is minimised, of what was measured."""

    @abstractmethod
    def save(self, folder: Path, tokenizer_from: Path, max_tokens: int) -> None:
        """Writes the checkpoint into the existing `folder`."""


class MaskedLanguageModel(PretrainingModel):
    """Masked tokens (Devlin et al., arXiv:1810.04805), with a sentence-pair head or without.

    `model` and `sentence` are those that training goes on from; what is not given is new.
    """

    def __init__(
        self,
        config: EncoderConfig,
        mask: FillMask,
        *,
        pairs: bool,
        model: TaskModel | None = None,
        sentence: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.model = model or TaskModel(config, mask)
        self.sentence = sentence
        if pairs and sentence is None:
            self.sentence = ClassificationHead(config, 2).apply(self.model.init_weights)

    def measure(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, labels: Tensor, sentence_labels: Tensor
    ) -> dict[str, MetricSum]:
        hidden = self.model.encoder(input_ids, attention_mask, token_type_ids)
        measured, _ = mlm_metrics(self.model.head, hidden, labels)
        if self.sentence is not None:
            measured |= classification_metrics("sentence", self.sentence(hidden, attention_mask), sentence_labels)
        return measured

    def loss(self, measured: dict[str, MetricSum]) -> Tensor:
        return weighted_loss(measured, {"mlm_loss": 1.0, "sentence_loss": 1.0})

    def save(self, folder: Path, tokenizer_from: Path, max_tokens: int) -> None:
        heads = {} if self.sentence is None else {NextSentencePrediction.name: self.sentence}
        save_model(self.model, folder, tokenizer_from=tokenizer_from, max_tokens=max_tokens, extra_heads=heads)


class ReplacedTokenModel(PretrainingModel):
    """A generator fills masks, a discriminator finds what it replaced (Clark et al., arXiv:2003.10555).

    They share the token, position and segment embeddings. No gradient flows through the samples. `discriminator` is
    one that training goes on from; without it, it is new.
    """

    def __init__(self, config: EncoderConfig, mask: FillMask, discriminator: TaskModel | None = None) -> None:
        super().__init__()
        self.config = config
        self.discriminator = discriminator or TaskModel(config, ReplacedTokenDetection())
        self.generator = TaskModel(generator_config(config), mask)
        own, shared = self.generator.encoder.embeddings, self.discriminator.encoder.embeddings
        own.token, own.position, own.segment = shared.token, shared.position, shared.segment
        head = self.generator.head
        assert isinstance(head, MaskedLmHead)
        head.tokens = shared.token

    def measure(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, labels: Tensor, sentence_labels: Tensor
    ) -> dict[str, MetricSum]:
        hidden = self.generator.encoder(input_ids, attention_mask, token_type_ids)
        measured, logits = mlm_metrics(self.generator.head, hidden, labels)
        chosen = labels != IGNORE_INDEX
        original = torch.where(chosen, labels, input_ids)
        corrupted = original.clone()
        corrupted[chosen] = sample(logits.detach())
        replaced = corrupted != original  # a sample that hits the original token has replaced nothing
        answers = self.discriminator(corrupted, attention_mask, token_type_ids).float()
        real = attention_mask.bool()
        total = F.binary_cross_entropy_with_logits(answers[real], replaced[real].float(), reduction="sum")
        right = ((answers > 0) == replaced)[real].sum()
        measured["rtd_loss"] = MetricSum(total, real.sum())
        measured["rtd_accuracy"] = MetricSum(right, real.sum())
        measured["replaced_share"] = MetricSum(replaced[real].sum(), real.sum())
        return measured

    def loss(self, measured: dict[str, MetricSum]) -> Tensor:
        return weighted_loss(measured, {"mlm_loss": 1.0, "rtd_loss": DISCRIMINATOR_WEIGHT})

    def save(self, folder: Path, tokenizer_from: Path, max_tokens: int) -> None:
        """The discriminator in `folder`, the generator in the folder `generator` there."""
        save_model(self.discriminator, folder, tokenizer_from=tokenizer_from, max_tokens=max_tokens)
        (folder / GENERATOR_FOLDER).mkdir()
        save_model(self.generator, folder / GENERATOR_FOLDER, tokenizer_from=tokenizer_from, max_tokens=max_tokens)


def generator_config(config: EncoderConfig, share: int = 4) -> EncoderConfig:
    """The generator beside a discriminator: as deep, and `share` times narrower but for its embeddings."""
    heads = max(1, config.num_heads // share)
    hidden = max(heads, config.hidden_size // share // heads * heads)
    return replace(
        config,
        hidden_size=hidden,
        num_heads=heads,
        intermediate_size=max(1, config.intermediate_size // share),
        embedding_size=None if config.embedding_width == hidden else config.embedding_width,
    )


def mlm_metrics(head: nn.Module, hidden: Tensor, labels: Tensor) -> tuple[dict[str, MetricSum], Tensor]:
    """Loss and accuracy where labels [B, S] are not -100, of hidden [B, S, H], and the logits there [M, vocabulary].

    The head is run on these rows alone: the whole vocabulary is scored for 15 % of the tokens.
    """
    chosen = labels != IGNORE_INDEX
    logits = head(hidden[chosen], chosen).float()
    return classification_metrics("mlm", logits, labels[chosen]), logits


def classification_metrics(name: str, logits: Tensor, targets: Tensor) -> dict[str, MetricSum]:
    """Summed cross-entropy and right decisions of logits [N, classes] where targets int64 [N] would be right."""
    logits, count = logits.float(), torch.tensor(len(targets), device=targets.device)
    total = F.cross_entropy(logits, targets, reduction="sum")
    right = (logits.argmax(dim=-1) == targets).sum()
    return {f"{name}_loss": MetricSum(total, count), f"{name}_accuracy": MetricSum(right, count)}


def sample(logits: Tensor) -> Tensor:
    """A token for each row of logits [M, vocabulary] → int64 [M], by adding Gumbel noise."""
    noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-9, 1 - 1e-7)))
    return (logits + noise).argmax(dim=-1)


def weighted_loss(measured: dict[str, MetricSum], weights: dict[str, float]) -> Tensor:
    """The weighted sum of mean losses, of those that were measured."""
    return torch.stack([weight * mean(measured[name]) for name, weight in weights.items() if name in measured]).sum()


def mean(measured: MetricSum) -> Tensor:
    """The total over the number; 0 where there is nothing."""
    return measured.total / measured.number.clamp(min=1)
