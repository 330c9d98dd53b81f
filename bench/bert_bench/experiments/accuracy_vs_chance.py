"""Accuracy of pre-training's second objectives vs. chance on held-out text, with 95 % confidence intervals."""

import math

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from bert_models.crf import IGNORE_INDEX
from bert_models.pretraining import PretrainingBatches, PretrainSettings
from bert_models.pretraining.model import ReplacedTokenModel
from bert_models.training.seeding import seed_from_indices

__all__ = ["auc_interval", "replaced_token_accuracy", "sentence_pair_accuracy"]

_NORMAL_95 = 1.96
"""Two-sided 95 % quantile of the standard normal distribution."""


def sentence_pair_accuracy(accuracy: float, dev: PretrainingBatches) -> dict[str, float]:
    """Compare the accuracy of sentence-pair decisions with always choosing the larger class.

    Args:
        accuracy: share of the pairs of `dev` that the model decides correctly.
        dev: held-out batches with sentence labels.

    Returns:
        `accuracy`; `chance`, the share of the larger class; `interval`, half of the binomial 95 % interval of the
        accuracy; and the number of `examples`.

    """
    labels = torch.cat([_sentence_labels(dev, index) for index in range(len(dev))])
    positives = float(labels.double().mean())
    interval = _NORMAL_95 * math.sqrt(accuracy * (1 - accuracy) / len(labels))
    return {
        "accuracy": accuracy, "chance": max(positives, 1 - positives), "interval": interval, "examples": len(labels),
    }  # fmt: skip


def _sentence_labels(dev: PretrainingBatches, index: int) -> Tensor:
    labels = dev[index].sentence_labels
    assert labels is not None
    return labels


def auc_interval(auc: float, positives: float, negatives: float) -> float:
    """Return half of the 95 % confidence interval of an area under the ROC curve.

    Hanley and McNeil 1982, doi 10.1148/radiology.143.1.7063747. The formula takes tokens to be independent, which
    tokens of one sequence are not quite.
    """
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (positives - 1) * (q1 - auc**2) + (negatives - 1) * (q2 - auc**2)
    return _NORMAL_95 * math.sqrt(variance / (positives * negatives))


def replaced_token_accuracy(
    model: ReplacedTokenModel, dev: PretrainingBatches, settings: PretrainSettings
) -> dict[str, float]:
    """Compare the discriminator's decisions on `dev`, in FP32, with calling every token original.

    Returns:
        `accuracy` over all tokens; `chance`, the share of original tokens; `gain`, the difference of the two;
        `interval`, half of the 95 % interval of the gain, from the gains of sequences, because tokens of one sequence
        are not independent; `balanced_accuracy` and `auc` (ROC), which do not depend on the share of replaced tokens;
        and the number of tokens, `examples`.

    """
    # The discriminator's input holds the generator's replacements, which the model draws itself.
    captured: list[tuple[Tensor, Tensor]] = []
    hook = model.discriminator.register_forward_hook(
        lambda module, inputs, output: captured.append((inputs[0], output))
    )
    logits, replaced, gains, lengths = [], [], [], []
    with torch.inference_mode():
        for index in range(len(dev)):
            batch = dev[index]
            seed_from_indices(settings.seed, 1, index)  # the replacements of the training loop's own evaluation
            model.measure(*batch[:4], torch.zeros(len(batch.input_ids), dtype=torch.int64))
            corrupted_ids, batch_logits = captured.pop()
            original_ids = torch.where(batch.labels == IGNORE_INDEX, batch.input_ids, batch.labels)
            is_replaced, is_token = corrupted_ids != original_ids, batch.attention_mask.bool()
            correct = ((batch_logits > 0) == is_replaced) & is_token
            gains.append(correct.sum(dim=1) - (~is_replaced & is_token).sum(dim=1))
            lengths.append(is_token.sum(dim=1))
            logits.append(batch_logits[is_token].float())
            replaced.append(is_replaced[is_token])
    hook.remove()
    return _detection_metrics(
        torch.cat(logits), torch.cat(replaced), torch.cat(gains).double(), torch.cat(lengths).double()
    )


def _detection_metrics(logits: Tensor, replaced: Tensor, gains: Tensor, lengths: Tensor) -> dict[str, float]:
    """Summarize decisions on tokens.

    Args:
        logits: of all tokens, float [N]; positive means "replaced".
        replaced: ground truth of all tokens, bool [N].
        gains: correct decisions of each sequence minus its original tokens, double [S].
        lengths: tokens of each sequence, double [S].

    """
    correct = (logits > 0) == replaced
    gain = gains.sum() / lengths.sum()
    standard_error = torch.sqrt(((gains - gain * lengths) ** 2).sum()) / lengths.sum()
    return {
        "accuracy": float(correct.double().mean()),
        "chance": 1 - float(replaced.double().mean()),
        "gain": float(gain),
        "interval": _NORMAL_95 * float(standard_error),
        "balanced_accuracy": float((correct[replaced].double().mean() + correct[~replaced].double().mean()) / 2),
        "auc": float(binary_auroc(logits, replaced.long())),
        "examples": len(replaced),
    }
