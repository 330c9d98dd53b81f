"""The optimizer, its groups of parameters, and the learning rate over the steps."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import AdamW

from bert_models.crf import LinearChainCrf

__all__ = ["adamw", "linear_schedule", "parameter_groups"]

_CRF_LR = 1e-2
"""Peak learning rate of a linear chain, which starts at zero and has to grow to the size of logits."""


def adamw(groups: list[dict[str, Any]], lr: float) -> AdamW:
    """AdamW whose step goes over the weights once, and not once per operation."""
    optimizer = AdamW(groups, lr=lr, fused=True)
    # It could divide the gradients of FP16 by their scale itself, but they are clipped before its step.
    optimizer._step_supports_amp_scaling = False
    return optimizer


def linear_schedule(steps: int, warmup_ratio: float) -> Callable[[int], float]:
    """The factor on the learning rate at each of `steps` steps of the optimizer: up from zero, then down to zero."""
    warmup = max(1, round(steps * warmup_ratio)) if warmup_ratio else 0

    def factor(step: int) -> float:
        return step / warmup if step < warmup else max(0.0, (steps - step) / max(1, steps - warmup))

    return factor


def parameter_groups(
    model: nn.Module, weight_decay: float, lr: float | None = None, layer_lr_decay: float = 1.0
) -> list[dict[str, Any]]:
    """Parameters in groups: matrices with weight decay; vectors (biases and LayerNorm) without; a linear chain.

    With `lr` and a `layer_lr_decay` below 1 there are two groups for the head, which has the rate `lr`, for every layer
    from the top, and for the embeddings, each with `layer_lr_decay` times the rate of the one above (Howard & Ruder,
    arXiv:1801.06146, section 3.2). A linear chain keeps a rate of its own.
    """
    chain = [p for module in model.modules() if isinstance(module, LinearChainCrf) for p in module.parameters()]
    rest = [p for p in model.parameters() if not any(p is each for each in chain)]
    last: list[dict[str, Any]] = [{"params": chain, "weight_decay": 0.0, "lr": _CRF_LR}] if chain else []
    if lr is None or layer_lr_decay == 1:
        return [*_by_decay(rest, weight_decay), *last]
    distances = _distances(model)
    groups: list[dict[str, Any]] = []
    for distance in sorted({distances.get(id(p), 0) for p in rest}):
        here = [p for p in rest if distances.get(id(p), 0) == distance]
        groups += [each | {"lr": lr * layer_lr_decay**distance} for each in _by_decay(here, weight_decay)]
    return [*(each for each in groups if each["params"]), *last]


def _by_decay(parameters: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def _distances(model: nn.Module) -> dict[int, int]:
    """How far below the head each parameter of the encoder is, by `id`: 1 in the last layer, most in the embeddings.

    Layers that share parameters have them at the topmost one's place. The token embedding that a head shares stays an
    embedding: it is pre-trained, and what is new in a head are its other parameters.
    """
    encoder: Any = model.encoder
    top = len(encoder.order)
    distances = {id(p): top + 1 for p in encoder.parameters()}
    for place, entry in enumerate(encoder.order):  # later places overwrite earlier ones
        distances |= {id(p): top - place for p in encoder.layers[entry].parameters()}
    return distances
