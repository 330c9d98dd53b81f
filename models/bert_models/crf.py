"""The training loss of a linear-chain conditional random field (Lafferty, McCallum & Pereira, ICML 2001).

`bert_runtime.crf` defines the score of a sequence of labels and decodes with what is trained here.

Letters in shapes: B sequences in the batch, S tokens per sequence, L labels, T the most labelled tokens of a sequence.
"""

import torch
from torch import Tensor, nn

__all__ = ["IGNORE_INDEX", "LinearChainCrf"]

IGNORE_INDEX = -100
"""The label of a token that is not part of the chain; what `torch.nn.functional.cross_entropy` ignores by default."""


class LinearChainCrf(nn.Module):
    """Scores of neighbouring labels, and the negative log-likelihood of label sequences under them.

    `transitions` [L + 2, L]: rows 0..L-1 from-label → to-label, row L each label's start, row L + 1 each label's end.
    They start at zero, where all moves are alike and the loss equals the token cross-entropy of the emissions: training
    begins as that of a plain token classifier, and only what the data say of neighbours departs from it.
    """

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(num_labels + 2, num_labels))

    def forward(self, emissions: Tensor, labels: Tensor) -> Tensor:
        """emissions: float [B, S, L]; labels: int64 [B, S], -100 where unlabelled → loss, float32 [].

        The negative log-likelihood of all sequences, divided by the number of labelled positions: comparable with the
        mean token cross-entropy, and long sequences weigh more than short ones just as they do there. The chain of a
        sequence runs over its labelled positions alone, in order, for labels sit on the first token of each word.
        A batch without any label has the loss 0.
        """
        # Sums over a chain leave the range in which half precision resolves differences.
        emissions, transitions = emissions.float(), self.transitions.float()
        emissions, labels, mask = compact_labelled(emissions, labels)
        lengths = mask.sum(dim=1)
        losses = log_partition(emissions, mask, transitions) - path_score(emissions, labels, mask, transitions)
        # The empty chain has one sequence, whose probability is one.
        return (losses * (lengths > 0)).sum() / lengths.sum().clamp(min=1)


def compact_labelled(emissions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move labelled positions to the front of their row, in order: [B, S, L], [B, S] → [B, T, L], [B, T], mask [B, T].

    Where the mask is False, emissions and labels are 0. T is at least 1.
    """
    labelled = labels != IGNORE_INDEX
    longest = max(1, int(labelled.sum(dim=1).max()))
    order = labelled.int().argsort(dim=1, descending=True, stable=True)[:, :longest]
    mask = labelled.gather(1, order)
    labels = labels.gather(1, order).masked_fill(~mask, 0)
    emissions = emissions.gather(1, order.unsqueeze(-1).expand(-1, -1, emissions.shape[2]))
    return emissions.masked_fill(~mask.unsqueeze(-1), 0), labels, mask


def log_partition(emissions: Tensor, mask: Tensor, transitions: Tensor) -> Tensor:
    """Log of the summed exp(score) of all label sequences: [B, T, L], bool [B, T], [L + 2, L] → [B].

    The forward recursion; every row is True in `mask` from its front on. A row without any counts as one position.
    """
    moves, start, end = transitions[:-2], transitions[-2], transitions[-1]
    totals = start + emissions[:, 0]
    for position in range(1, emissions.shape[1]):
        arrived = torch.logsumexp(totals.unsqueeze(-1) + moves, dim=1) + emissions[:, position]
        totals = torch.where(mask[:, position, None], arrived, totals)
    return torch.logsumexp(totals + end, dim=-1)


def path_score(emissions: Tensor, labels: Tensor, mask: Tensor, transitions: Tensor) -> Tensor:
    """Score of the given label sequences: [B, T, L], int64 [B, T], bool [B, T], [L + 2, L] → [B].

    Emissions and labels are 0 where the mask is False, as `compact_labelled` leaves them.
    """
    last = (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)
    emitted = emissions.gather(2, labels.unsqueeze(-1)).squeeze(-1).sum(dim=1)
    moved = (transitions[labels[:, :-1], labels[:, 1:]] * mask[:, 1:]).sum(dim=1)
    return emitted + moved + transitions[-2, labels[:, 0]] + transitions[-1, labels.gather(1, last).squeeze(1)]
