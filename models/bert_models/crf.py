"""Training loss of a linear-chain conditional random field (CRF; Lafferty, McCallum & Pereira, ICML 2001).

`bert_runtime.crf` defines the score of a label sequence and decodes with the transitions that are trained here.

Letters in shapes: B sequences in the batch, S tokens per sequence, L labels, T the maximum number of labelled tokens in
a sequence of the batch.
"""

import torch
from torch import Tensor, nn

__all__ = ["IGNORE_INDEX", "LinearChainCrf"]

IGNORE_INDEX = -100
"""Label of a token without a label: the default `ignore_index` of `torch.nn.functional.cross_entropy`."""


class LinearChainCrf(nn.Module):
    """Transition scores between labels, and the negative log-likelihood of label sequences under them.

    With emissions e and transitions A, a label sequence y of length T has the score
    `A[start, y_1] + Σ_t e[t, y_t] + Σ_t A[y_t, y_t+1] + A[y_T, end]`.

    `transitions`, float [L + 2, L], holds A: rows 0…L-1 from label to label, row L the start scores, row L + 1 the end
    scores. It starts at zero, where the loss equals the token cross-entropy of the emissions: training begins like a
    plain token classifier's.
    """

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(num_labels + 2, num_labels))

    def forward(self, emissions: Tensor, labels: Tensor) -> Tensor:
        """Return the negative log-likelihood of all sequences, divided by the number of labelled tokens.

        This makes it comparable with the mean token cross-entropy: long sequences weigh more than short ones in both.
        A sequence's chain consists of its labelled tokens in order, because only the first token of a word is labelled.
        A batch without any label has the loss 0.

        Args:
            emissions: logits of the tokens, float [B, S, L].
            labels: class ids, int64 [B, S], `IGNORE_INDEX` at unlabelled tokens.

        Returns:
            The loss, float32 [].
        """
        # Half precision cannot resolve the differences between sums over a chain.
        emissions, transitions = emissions.float(), self.transitions.float()
        emissions, labels, mask = compact_labelled(emissions, labels)
        lengths = mask.sum(dim=1)
        losses = log_partition(emissions, mask, transitions) - path_score(emissions, labels, mask, transitions)
        # An empty chain has exactly one label sequence, of probability one.
        return (losses * (lengths > 0)).sum() / lengths.sum().clamp(min=1)


def compact_labelled(emissions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move the labelled tokens of every sequence to its front, in order.

    Args:
        emissions: float [B, S, L].
        labels: int64 [B, S], `IGNORE_INDEX` at unlabelled tokens.

    Returns:
        Emissions [B, T, L], labels [B, T] and a mask, bool [B, T], with T ≥ 1. Where the mask is False, emissions and
        labels are 0.
    """
    labelled = labels != IGNORE_INDEX
    max_labelled = max(1, int(labelled.sum(dim=1).max()))
    order = labelled.int().argsort(dim=1, descending=True, stable=True)[:, :max_labelled]
    mask = labelled.gather(1, order)
    labels = labels.gather(1, order).masked_fill(~mask, 0)
    emissions = emissions.gather(1, order.unsqueeze(-1).expand(-1, -1, emissions.shape[2]))
    return emissions.masked_fill(~mask.unsqueeze(-1), 0), labels, mask


def log_partition(emissions: Tensor, mask: Tensor, transitions: Tensor) -> Tensor:
    """Compute log Σ exp(score) over all label sequences by the forward algorithm.

    Args:
        emissions: float [B, T, L].
        mask: bool [B, T], True at the first positions of a sequence; a sequence without any counts as one position.
        transitions: float [L + 2, L].

    Returns:
        float [B].
    """
    between, start, end = transitions[:-2], transitions[-2], transitions[-1]
    totals = start + emissions[:, 0]
    for position in range(1, emissions.shape[1]):
        extended = torch.logsumexp(totals.unsqueeze(-1) + between, dim=1) + emissions[:, position]
        totals = torch.where(mask[:, position, None], extended, totals)
    return torch.logsumexp(totals + end, dim=-1)


def path_score(emissions: Tensor, labels: Tensor, mask: Tensor, transitions: Tensor) -> Tensor:
    """Compute the score of the given label sequences.

    Args:
        emissions: float [B, T, L], 0 where `mask` is False.
        labels: int64 [B, T], 0 where `mask` is False.
        mask: bool [B, T], as `compact_labelled` returns it.
        transitions: float [L + 2, L].

    Returns:
        float [B].
    """
    last = (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)
    emission_score = emissions.gather(2, labels.unsqueeze(-1)).squeeze(-1).sum(dim=1)
    transition_score = (transitions[labels[:, :-1], labels[:, 1:]] * mask[:, 1:]).sum(dim=1)
    start_score, end_score = transitions[-2, labels[:, 0]], transitions[-1, labels.gather(1, last).squeeze(1)]
    return emission_score + transition_score + start_score + end_score
