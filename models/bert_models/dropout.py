"""Dropout of a model that is trained."""

from torch import nn

from bert_models.layers import SelfAttention

__all__ = ["set_dropout"]


def set_dropout(model: nn.Module, probability: float) -> None:
    """Set the probability of all dropout of a model, also that of its attention."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
        elif isinstance(module, SelfAttention):
            module.attention_dropout = probability
