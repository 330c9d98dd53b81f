"""Task heads: map the encoder's hidden states to the raw outputs that a task's post-processing reads.

Every head takes `hidden`, float [B, S, H], and `attention_mask`, int64 [B, S] (1 at real tokens, 0 at padding).

Letters in shapes: B sequences in the batch, S tokens per sequence, H hidden size, L labels, V vocabulary size.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_models.config import EncoderConfig
from bert_models.crf import LinearChainCrf
from bert_models.hidden_states_head import HiddenStatesHead
from bert_models.layers import Encoder, activation_function, layer_norm
from bert_models.pooling import build_pooling
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
from bert_runtime.tasks.sparse_embedding import SPARSE_ACTIVATIONS

__all__ = [
    "HEADS",
    "ClassificationHead",
    "DiscriminatorHead",
    "EmbeddingHead",
    "MaskedLmHead",
    "RelevanceHead",
    "SparseEmbeddingHead",
    "TokenClassificationHead",
    "TokenHead",
    "build_head",
    "next_sentence_head",
]


def _dropout(config: EncoderConfig) -> float:
    """Return the dropout probability before a head's last projection."""
    return config.hidden_dropout if config.classifier_dropout is None else config.classifier_dropout


class ClassificationHead(nn.Module):
    """First token, or mean of tokens → dense → activation → LayerNorm if any → dropout → projection to labels.

    All families use this head and differ in pooling, activation and LayerNorm; some have a dropout before the dense
    layer, too. In BERT and ALBERT that is the pooler, with tanh (Devlin et al., arXiv:1810.04805), which the
    sentence-pair objective pre-trains.
    """

    def __init__(self, config: EncoderConfig, num_labels: int, *, output_dropout: bool = True) -> None:
        super().__init__()
        self.pooling = build_pooling(config.classifier_pooling, config)
        self.input_dropout = nn.Dropout(_dropout(config)) if config.classifier_input_dropout else nn.Identity()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.head_bias)
        self.activation = activation_function(config.classifier_activation)
        self.norm = layer_norm(config) if config.head_transform else nn.Identity()
        self.dropout = nn.Dropout(_dropout(config)) if output_dropout else nn.Identity()
        self.output = nn.Linear(config.hidden_size, num_labels)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits, float [B, L]."""
        pooled = self.input_dropout(self.pooling(hidden, attention_mask))
        return self.output(self.dropout(self.norm(self.activation(self.dense(pooled)))))


class EmbeddingHead(nn.Module):
    """Pooling → dense layers, if any → optional LayerNorm → truncation to `dimensions` → optional L2 normalisation."""

    def __init__(self, config: EncoderConfig, task: SentenceEmbedding) -> None:
        super().__init__()
        sizes = (config.hidden_size, *task.dense_sizes)
        self.pooling = build_pooling(task.pooling, config)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.activations = [activation_function(name) for name in task.dense_activations]
        self.dimensions = task.dimensions if task.dimensions < sizes[-1] else None
        self.layer_norm = task.layer_norm
        self.normalize = task.normalize

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return sentence embeddings, float [B, `task.dimensions`]."""
        vector = self.pooling(hidden, attention_mask)
        for layer, activation in zip(self.layers, self.activations, strict=True):
            vector = activation(layer(vector))
        if self.layer_norm:
            vector = F.layer_norm(vector, vector.shape[-1:])  # without parameters: of the whole vector, before the cut
        if self.dimensions is not None:
            vector = vector[:, : self.dimensions]
        return F.normalize(vector, dim=-1) if self.normalize else vector


class RelevanceLayer(nn.Module):
    """Dense → activation → optional LayerNorm, of a reranking head of modules."""

    def __init__(self, in_features: int, out_features: int, activation: str, *, norm: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.activation = activation_function(activation)
        self.norm = nn.LayerNorm(out_features) if norm else None  # with torch's epsilon, as in sentence-transformers

    def forward(self, vector: Tensor) -> Tensor:
        """Map float [B, `in_features`] to float [B, `out_features`]."""
        output: Tensor = self.activation(self.linear(vector))
        return output if self.norm is None else self.norm(output)


class RelevanceHead(nn.Module):
    """Pooling over tokens → dense layers, of which the last one has one output: one logit per pair of texts."""

    def __init__(self, config: EncoderConfig, pooling: str, task: Reranking) -> None:
        super().__init__()
        self.pooling = build_pooling(pooling, config)
        sizes = pairwise((config.hidden_size, *task.dense_sizes))
        self.layers = nn.ModuleList(
            RelevanceLayer(*size, activation, norm=norm)
            for size, activation, norm in zip(sizes, task.dense_activations, task.dense_norms, strict=True)
        )

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits, float [B, 1]."""
        vector: Tensor = self.pooling(hidden, attention_mask)
        for layer in self.layers:
            vector = layer(vector)
        return vector


class TokenHead(nn.Module):
    """Dropout → projection of every token to `size` logits; with `head_transform`, dense → activation → LayerNorm
    before it.
    """

    def __init__(self, config: EncoderConfig, size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dense: nn.Module = nn.Identity()
        self.norm: nn.Module = nn.Identity()
        self.activation = activation_function(config.classifier_activation if config.head_transform else "identity")
        if config.head_transform:
            self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.head_bias)
            self.norm = layer_norm(config)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(config.hidden_size, size)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits, float [B, S, size]."""
        logits: Tensor = self.output(self.dropout(self.norm(self.activation(self.dense(hidden)))))
        return logits


class TokenClassificationHead(TokenHead):
    """Projection of every token to labels, with an optional CRF.

    `forward` returns the emissions. The CRF's transitions are used by the training loss, and by `Task.decode`.
    """

    def __init__(self, config: EncoderConfig, task: TokenClassification) -> None:
        dropout = _dropout(config) if config.token_classifier_dropout else config.hidden_dropout
        super().__init__(config, len(task.labels), dropout)
        self.crf = LinearChainCrf(len(task.labels)) if task.crf else None


class MaskedLmHead(nn.Module):
    """Masked-language-model head: dense → activation → LayerNorm → projection to the vocabulary.

    The projection is the token embedding (tied weights; Press & Wolf, arXiv:1608.05859), with a bias of its own if any.
    """

    def __init__(self, config: EncoderConfig, encoder: Encoder) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_width, bias=config.head_bias)
        self.activation = activation_function(config.prediction_activation or config.activation)
        self.norm = layer_norm(config, config.embedding_width)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.decoder_bias else None
        self.tokens = encoder.embeddings.token

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits, float [B, S, V]."""
        return F.linear(self.norm(self.activation(self.dense(hidden))), self.tokens.weight, self.bias)


class SparseEmbeddingHead(MaskedLmHead):
    """SPLADE's head: the scores of the masked-language-model head, whose positive part is pooled over the tokens.

    Formal et al., arXiv:2109.10086, equation 6, for the maximum, and arXiv:2107.05720 for the sum.
    """

    def __init__(self, config: EncoderConfig, encoder: Encoder, task: SparseEmbedding) -> None:
        super().__init__(config, encoder)
        self.pooling = task.pooling
        self.num_logarithms = 1 + SPARSE_ACTIVATIONS.index(task.activation)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the weight of every token of the vocabulary, float [B, V]."""
        logits = super().forward(hidden, attention_mask)
        mask = attention_mask.unsqueeze(-1).to(logits.dtype)
        if self.pooling == "max":  # the weights rise with the logits, so that the largest logit has the largest weight
            return self._weights((logits * mask).amax(dim=1))
        return (self._weights(logits) * mask).sum(dim=1)

    def _weights(self, logits: Tensor) -> Tensor:
        weights = logits.relu()
        for _ in range(self.num_logarithms):
            weights = weights.log1p()
        return weights


class DiscriminatorHead(nn.Module):
    """ELECTRA's discriminator head: dense → activation → one logit per token (Clark et al., arXiv:2003.10555)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation_function(config.activation)
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the logits of "this token was replaced", float [B, S]."""
        logits: Tensor = self.output(self.activation(self.dense(hidden)))
        return logits.squeeze(-1)


def next_sentence_head(config: EncoderConfig) -> ClassificationHead:
    """Return a new head for pairs of texts, with two classes."""
    return ClassificationHead(config, 2, output_dropout=config.next_sentence_dropout)


def _question_answering(encoder: Encoder, config: EncoderConfig, task: Task) -> nn.Module:
    dropout = config.question_answering_dropout
    return TokenHead(config, 2, _dropout(config) if dropout is None else dropout)


def _text_classification(encoder: Encoder, config: EncoderConfig, task: Task) -> nn.Module:
    assert isinstance(task, TextClassification)
    return ClassificationHead(config, len(task.labels))


def _token_classification(encoder: Encoder, config: EncoderConfig, task: Task) -> nn.Module:
    assert isinstance(task, TokenClassification)
    return TokenClassificationHead(config, task)


def _sentence_embedding(encoder: Encoder, config: EncoderConfig, task: Task) -> nn.Module:
    assert isinstance(task, SentenceEmbedding)
    return EmbeddingHead(config, task)


def _sparse_embedding(encoder: Encoder, config: EncoderConfig, task: Task) -> nn.Module:
    assert isinstance(task, SparseEmbedding)
    return SparseEmbeddingHead(config, encoder, task)


def _reranking(encoder: Encoder, config: EncoderConfig, task: Task) -> nn.Module:
    assert isinstance(task, Reranking)
    return ClassificationHead(config, 1) if task.pooling is None else RelevanceHead(config, task.pooling, task)


def _feature_extraction(encoder: Encoder, config: EncoderConfig, task: Task) -> nn.Module:
    assert isinstance(task, FeatureExtraction)
    return HiddenStatesHead(task)


HEADS: Mapping[str, Callable[[Encoder, EncoderConfig, Task], nn.Module]] = {
    TextClassification.name: _text_classification,
    TokenClassification.name: _token_classification,
    QuestionAnswering.name: _question_answering,
    FillMask.name: lambda encoder, config, task: MaskedLmHead(config, encoder),
    NextSentencePrediction.name: lambda encoder, config, task: next_sentence_head(config),
    ReplacedTokenDetection.name: lambda encoder, config, task: DiscriminatorHead(config),
    SentenceEmbedding.name: _sentence_embedding,
    SparseEmbedding.name: _sparse_embedding,
    Reranking.name: _reranking,
    FeatureExtraction.name: _feature_extraction,
}
"""Factories of the heads by task; the keys are those of `bert_runtime.tasks.TASKS`."""


def build_head(encoder: Encoder, config: EncoderConfig, task: Task) -> nn.Module:
    """Build the head of `task`.

    Args:
        encoder: the encoder below it; a fill-mask head shares its token embedding.
        config: the encoder's configuration.
        task: the task, whose settings give labels, pooling and so on.

    Returns:
        A module with newly initialised parameters.
    """
    return HEADS[task.name](encoder, config, task)
