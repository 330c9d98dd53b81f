"""Whether decisions on held-out text are better than chance."""

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from bert_models.pretraining import PretrainingBatches, PretrainSettings
from bert_models.pretraining.masking import IGNORED
from bert_models.pretraining.model import ReplacedTokenModel
from bert_models.training.steps import seed_from_indices

__all__ = ["above_majority", "above_share", "auc_interval"]

_NORMAL_95 = 1.96


def above_share(accuracy: float, dev: PretrainingBatches) -> dict[str, float]:
    """Accuracy on the pairs of `dev` beside the share of the larger class, with half of its binomial 95 % interval."""
    labels = torch.cat([_sentence_labels(dev, number) for number in range(len(dev))])
    share = float(labels.double().mean())
    interval = _NORMAL_95 * math.sqrt(accuracy * (1 - accuracy) / len(labels))
    return {"accuracy": accuracy, "chance": max(share, 1 - share), "interval": interval, "examples": len(labels)}


def auc_interval(auc: float, positives: float, negatives: float) -> float:
    """Half of the 95 % interval of an area under the ROC curve.

    Hanley and McNeil 1982, doi 10.1148/radiology.143.1.7063747. It takes tokens for independent, which those of one
    sequence are not quite.
    """
    both = auc / (2 - auc) - auc**2, 2 * auc**2 / (1 + auc) - auc**2
    variance = auc * (1 - auc) + (positives - 1) * both[0] + (negatives - 1) * both[1]
    return _NORMAL_95 * math.sqrt(variance / (positives * negatives))


def _sentence_labels(dev: PretrainingBatches, number: int) -> Tensor:
    labels = dev[number].sentence_labels
    assert labels is not None
    return labels


def above_majority(model: ReplacedTokenModel, dev: PretrainingBatches, settings: PretrainSettings) -> dict[str, float]:
    """The discriminator's decisions on `dev`, in FP32, beside calling every token original.

    `interval` is half of the 95 % interval of the gain in accuracy over that. Sequences are what is independent, not
    their tokens, so it comes from the gains of the sequences. Balanced accuracy and ROC AUC do not depend on the share.
    """
    found: list[tuple[Tensor, Tensor]] = []
    hook = model.discriminator.register_forward_hook(lambda module, inputs, output: found.append((inputs[0], output)))
    scores, truths, gains, sizes = [], [], [], []
    with torch.inference_mode():
        for number in range(len(dev)):
            batch = dev[number]
            seed_from_indices(settings.seed, 1, number)  # the corruptions of the loop's own measurements
            model.measure(*batch[:4], torch.zeros(len(batch.input_ids), dtype=torch.int64))
            corrupted, logits = found.pop()
            replaced = corrupted != torch.where(batch.labels == IGNORED, batch.input_ids, batch.labels)
            real = batch.attention_mask.bool()
            right = ((logits > 0) == replaced) & real
            gains.append(right.sum(dim=1) - (~replaced & real).sum(dim=1))
            sizes.append(real.sum(dim=1))
            scores.append(logits[real].float())
            truths.append(replaced[real])
    hook.remove()
    return _detection(torch.cat(scores), torch.cat(truths), torch.cat(gains).double(), torch.cat(sizes).double())


def _detection(scores: Tensor, truth: Tensor, gains: Tensor, sizes: Tensor) -> dict[str, Any]:
    """Of logits [N] and what was replaced, bool [N], and of the sequences' gains in right decisions and tokens."""
    right = (scores > 0) == truth
    chance = 1 - float(truth.double().mean())
    gain = gains.sum() / sizes.sum()
    error = torch.sqrt(((gains - gain * sizes) ** 2).sum()) / sizes.sum()
    return {
        "accuracy": float(right.double().mean()),
        "chance": chance,
        "gain": float(gain),
        "interval": _NORMAL_95 * float(error),
        "balanced_accuracy": float((right[truth].double().mean() + right[~truth].double().mean()) / 2),
        "auc": float(binary_auroc(scores, truth.long())),
        "examples": len(truth),
    }
