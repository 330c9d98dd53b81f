"""AdamW, its parameter groups, and the learning-rate schedule."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from bert_models.crf import LinearChainCrf

__all__ = ["adamw", "linear_schedule", "number_by_module", "parameter_groups"]

_CRF_LR = 1e-2
"""Peak learning rate of a linear-chain CRF: its scores start at zero and must grow to the scale of logits."""


def adamw(groups: list[dict[str, Any]], lr: float) -> AdamW:
    """Return AdamW (Loshchilov & Hutter, arXiv:1711.05101) with torch's fused step."""
    optimizer = AdamW(groups, lr=lr, fused=True)
    # The fused step could unscale FP16 gradients itself, but they are clipped before it, and so unscaled already.
    optimizer._step_supports_amp_scaling = False
    return optimizer


def linear_schedule(steps: int, warmup_ratio: float) -> Callable[[int], float]:
    """Return the learning-rate factor by optimizer step: linear from 0 to 1, then linear to 0 at `steps`.

    For `w` warm-up steps, `factor(t) = t / w` where `t < w`, and `(steps - t) / (steps - w)` from there on.

    Args:
        steps: all optimizer steps.
        warmup_ratio: fraction of them that are warm-up; unless it is 0 or there is one step, at least one is.
    """
    warmup = min(max(1, round(steps * warmup_ratio)), steps - 1) if warmup_ratio else 0

    def factor(step: int) -> float:
        return step / warmup if step < warmup else max(0.0, (steps - step) / max(1, steps - warmup))

    return factor


def parameter_groups(
    model: nn.Module, weight_decay: float, lr: float | None = None, layer_lr_decay: float = 1.0
) -> list[dict[str, Any]]:
    """Group parameters by weight decay and, if asked for, by layer.

    Matrices have weight decay; vectors (biases and LayerNorm) have none. A linear-chain CRF has its own group, without
    decay and with its own learning rate.

    With discriminative fine-tuning (Howard & Ruder, arXiv:1801.06146, section 3.2), a layer that is `d` layers below
    the head has the rate `lr * layer_lr_decay**d`; the embeddings are one below the lowest layer.

    Args:
        model: the model to train; with `layer_lr_decay`, a `TaskModel`.
        weight_decay: decay of matrices.
        lr: peak learning rate of the head; needed for `layer_lr_decay` only.
        layer_lr_decay: factor per layer; 1 gives all layers the optimizer's rate.

    Returns:
        Groups in the order of `torch.optim`: head, layers from the top, embeddings, CRF.
    """
    crf = [p for module in model.modules() if isinstance(module, LinearChainCrf) for p in module.parameters()]
    others = [p for p in model.parameters() if not any(p is crf_parameter for crf_parameter in crf)]
    crf_groups: list[dict[str, Any]] = [{"params": crf, "weight_decay": 0.0, "lr": _CRF_LR}] if crf else []
    if lr is None or layer_lr_decay == 1:
        return [*_split_by_decay(others, weight_decay), *crf_groups]
    depths = _depths_below_head(model)
    groups: list[dict[str, Any]] = []
    for depth in sorted({depths.get(id(p), 0) for p in others}):
        layer = [p for p in others if depths.get(id(p), 0) == depth]
        groups += [group | {"lr": lr * layer_lr_decay**depth} for group in _split_by_decay(layer, weight_decay)]
    return [*(group for group in groups if group["params"]), *crf_groups]


def number_by_module(state: Mapping[str, Any], optimizer: Optimizer, module: nn.Module) -> dict[str, Any]:
    """Return the state of an optimizer with the numbers that its parameters have in the module, not in its groups.

    Lightning saves and reads the state of sharded parameters (FSDP) in this way, while torch reads parameters by their
    positions in groups, whatever their numbers. So a run can be resumed sharded or not. Parameters that had no gradient
    yet get the state that AdamW starts with, which is expected of all.
    """
    numbers = {id(parameter): number for number, parameter in enumerate(module.parameters())}
    renumbered: dict[int, int] = {}
    groups = []
    for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True):
        in_module = [numbers[id(parameter)] for parameter in group["params"]]
        renumbered |= zip(saved["params"], in_module, strict=True)
        groups.append({**saved, "params": in_module})
    values = {renumbered[number]: value for number, value in state["state"].items()}
    for number, parameter in enumerate(module.parameters()):
        if parameter.requires_grad and number not in values:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            values[number] = {"step": torch.tensor(0.0), **moments}
    return {"state": values, "param_groups": groups}


def _split_by_decay(parameters: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def _depths_below_head(model: nn.Module) -> dict[int, int]:
    """Return the depth of each encoder parameter below the head, by `id`: 1 in the last layer, most in the embeddings.

    Layers that share parameters count as the topmost of them. A token embedding that a head shares counts as an
    embedding: it is pre-trained, while the head's other parameters are new.
    """
    encoder: Any = model.encoder
    top = len(encoder.order)
    depths = {id(p): top + 1 for p in encoder.parameters()}
    if encoder.final_norm is not None:  # above the last layer
        depths |= {id(p): 0 for p in encoder.final_norm.parameters()}
    for index, layer in enumerate(encoder.order):  # higher layers overwrite lower ones
        depths |= {id(p): top - index for p in encoder.layers[layer].parameters()}
    return depths
