"""The models of pre-training: an encoder with the heads of an objective, and the losses of a batch.

Letters in shapes: B sequences in the batch, S tokens per sequence, M predicted tokens, H hidden size, V vocabulary.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_models.config import EncoderConfig
from bert_models.crf import IGNORE_INDEX
from bert_models.heads import MaskedLmHead, next_sentence_head
from bert_models.model import TaskModel
from bert_models.saving import save_model
from bert_models.training.run_dir import GENERATOR_FOLDER
from bert_runtime.tasks import FillMask, NextSentencePrediction, ReplacedTokenDetection

__all__ = [
    "DISCRIMINATOR_WEIGHT",
    "MaskedLanguageModel",
    "MetricSum",
    "PretrainingModel",
    "ReplacedTokenModel",
    "classification_metrics",
    "generator_config",
    "mlm_metrics",
    "weighted_loss",
]

DISCRIMINATOR_WEIGHT = 50.0
"""Weight λ of the discriminator's loss; the generator's is 1 (ELECTRA, arXiv:2003.10555, section 2, appendix A)."""

_GENERATOR_DIVISOR = 4
"""How many times narrower a generator is; ELECTRA's have 1/4 to 1/2 of the width (arXiv:2003.10555, section 3.2)."""


class MetricSum(NamedTuple):
    """A metric summed over a batch: losses, or correct predictions. Sums of several batches add up."""

    total: Tensor
    """The sum, []."""
    num_items: Tensor
    """Number of predictions in the sum, []."""

    @property
    def mean(self) -> Tensor:
        """The sum divided by the number of predictions; 0 without predictions."""
        return self.total / self.num_items.clamp(min=1)


class PretrainingModel(nn.Module, ABC):
    """An encoder with the heads of one objective."""

    config: EncoderConfig

    @abstractmethod
    def measure(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, labels: Tensor, sentence_labels: Tensor
    ) -> dict[str, MetricSum]:
        """Compute losses (`…_loss`) and correct predictions (`…_accuracy`) of a batch, summed.

        Args:
            input_ids: masked token ids, int64 [B, S].
            attention_mask: 1 at tokens, 0 at padding, int64 [B, S].
            token_type_ids: token types, int64 [B, S].
            labels: original ids of the predicted tokens, -100 elsewhere, int64 [B, S].
            sentence_labels: classes of the pairs, int64 [B]; ignored by objectives without pairs.
        """

    @abstractmethod
    def loss(self, measured: dict[str, MetricSum]) -> Tensor:
        """Return the loss to minimize, float32 [], from what `measure` returned."""

    @abstractmethod
    def save(self, folder: Path, tokenizer_from: Path, max_tokens: int) -> None:
        """Write the checkpoint into the existing `folder`, with the tokenizer's files of `tokenizer_from`."""


class MaskedLanguageModel(PretrainingModel):
    """Masked language model (BERT, arXiv:1810.04805), with or without a sentence-pair head.

    The loss is the mean cross-entropy at the predicted tokens, plus that of the pairs.
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
        """Use the given weights, or new ones for what is not given.

        Args:
            config: configuration of the encoder.
            mask: the task of filling masks, with the mask token.
            pairs: whether there is a sentence-pair head, with two classes.
            model: encoder and masked-language head to continue from.
            sentence: sentence-pair head to continue from.
        """
        super().__init__()
        self.config = config
        self.model = model or TaskModel(config, mask)
        self.sentence = sentence
        if pairs and sentence is None:
            self.sentence = next_sentence_head(config).apply(self.model.init_weights)

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
    """Replaced-token detection (ELECTRA, arXiv:2003.10555): a generator fills masks, a discriminator finds its fills.

    Both share token, position and segment embeddings. No gradient flows through the generator's samples. The loss is
    `L_MLM + 50 L_disc`, where `L_disc` is the mean binary cross-entropy over all tokens.
    """

    def __init__(self, config: EncoderConfig, mask: FillMask, discriminator: TaskModel | None = None) -> None:
        """Build a new generator, and the discriminator unless one is given to continue from."""
        super().__init__()
        self.config = config
        self.discriminator = discriminator or TaskModel(config, ReplacedTokenDetection())
        self.generator = TaskModel(generator_config(config), mask)
        embeddings, shared = self.generator.encoder.embeddings, self.discriminator.encoder.embeddings
        embeddings.token, embeddings.position, embeddings.segment = shared.token, shared.position, shared.segment
        head = self.generator.head
        assert isinstance(head, MaskedLmHead)
        head.tokens = shared.token

    def measure(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, labels: Tensor, sentence_labels: Tensor
    ) -> dict[str, MetricSum]:
        hidden = self.generator.encoder(input_ids, attention_mask, token_type_ids)
        measured, logits = mlm_metrics(self.generator.head, hidden, labels)
        is_predicted = labels != IGNORE_INDEX
        original_ids = torch.where(is_predicted, labels, input_ids)
        corrupted_ids = original_ids.clone()
        corrupted_ids[is_predicted] = sample(logits.detach())
        is_replaced = corrupted_ids != original_ids  # a sample that equals the original token replaces nothing
        scores = self.discriminator(corrupted_ids, attention_mask, token_type_ids).float()
        is_token = attention_mask.bool()
        num_tokens = is_token.sum()
        total = F.binary_cross_entropy_with_logits(scores[is_token], is_replaced[is_token].float(), reduction="sum")
        num_correct = ((scores > 0) == is_replaced)[is_token].sum()
        measured["rtd_loss"] = MetricSum(total, num_tokens)
        measured["rtd_accuracy"] = MetricSum(num_correct, num_tokens)
        measured["replaced_share"] = MetricSum(is_replaced[is_token].sum(), num_tokens)
        return measured

    def loss(self, measured: dict[str, MetricSum]) -> Tensor:
        return weighted_loss(measured, {"mlm_loss": 1.0, "rtd_loss": DISCRIMINATOR_WEIGHT})

    def save(self, folder: Path, tokenizer_from: Path, max_tokens: int) -> None:
        """Write the discriminator into `folder`, and the generator into its folder `generator`."""
        save_model(self.discriminator, folder, tokenizer_from=tokenizer_from, max_tokens=max_tokens)
        (folder / GENERATOR_FOLDER).mkdir()
        save_model(self.generator, folder / GENERATOR_FOLDER, tokenizer_from=tokenizer_from, max_tokens=max_tokens)


def generator_config(config: EncoderConfig) -> EncoderConfig:
    """Return the generator's configuration for a discriminator's: as deep, and narrower.

    Embeddings keep their width.
    """
    heads = max(1, config.num_heads // _GENERATOR_DIVISOR)
    hidden = max(heads, config.hidden_size // _GENERATOR_DIVISOR // heads * heads)
    return replace(
        config,
        hidden_size=hidden,
        num_heads=heads,
        intermediate_size=max(1, config.intermediate_size // _GENERATOR_DIVISOR),
        embedding_size=None if config.embedding_width == hidden else config.embedding_width,
    )


def mlm_metrics(head: nn.Module, hidden: Tensor, labels: Tensor) -> tuple[dict[str, MetricSum], Tensor]:
    """Compute `mlm_loss` and `mlm_accuracy` at the predicted tokens.

    The head runs on these tokens only, which are 15 % of all: it scores the whole vocabulary.

    Args:
        head: the masked-language head.
        hidden: hidden states, float [B, S, H].
        labels: original ids of the predicted tokens, -100 elsewhere, int64 [B, S].

    Returns:
        The metrics, and the logits of the predicted tokens, float32 [M, V].
    """
    is_predicted = labels != IGNORE_INDEX
    logits = head(hidden[is_predicted], is_predicted).float()
    return classification_metrics("mlm", logits, labels[is_predicted]), logits


def classification_metrics(name: str, logits: Tensor, targets: Tensor) -> dict[str, MetricSum]:
    """Return the summed cross-entropy, `{name}_loss`, and the number of correct predictions, `{name}_accuracy`.

    Args:
        name: prefix of the metrics.
        logits: float [N, classes].
        targets: class ids, int64 [N].
    """
    logits, num_items = logits.float(), torch.tensor(len(targets), device=targets.device)
    total = F.cross_entropy(logits, targets, reduction="sum")
    num_correct = (logits.argmax(dim=-1) == targets).sum()
    return {f"{name}_loss": MetricSum(total, num_items), f"{name}_accuracy": MetricSum(num_correct, num_items)}


def sample(logits: Tensor) -> Tensor:
    """Sample a token from each row's softmax with the Gumbel-max trick: logits [M, V] → int64 [M]."""
    noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-9, 1 - 1e-7)))
    return (logits + noise).argmax(dim=-1)


def weighted_loss(measured: dict[str, MetricSum], weights: dict[str, float]) -> Tensor:
    """Return the weighted sum of the mean losses that were measured, float32 []."""
    return torch.stack([weight * measured[name].mean for name, weight in weights.items() if name in measured]).sum()
