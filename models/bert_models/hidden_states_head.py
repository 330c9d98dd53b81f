"""The head of feature extraction, which reads what several layers of the encoder compute."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from bert_runtime.tasks import FeatureExtraction

__all__ = ["HiddenStatesHead"]


class HiddenStatesHead(nn.Module):
    """Hidden states of some layers → one vector per token. Unlike other heads, it reads what every layer computes."""

    def __init__(self, task: FeatureExtraction) -> None:
        super().__init__()
        self.layers, self.combination = task.layers, task.layer_combination

    def forward(self, hidden_states: Iterable[Tensor]) -> Tensor:
        """Combine hidden states.

        Args:
            hidden_states: the embeddings, then what each layer computes, float [B, S, H] each; none is asked for above
                the highest layer that is read.

        Returns:
            float [B, S, H], or [B, S, H · layers] for layers side by side.
        """
        found = dict(zip(range(max(self.layers) + 1), hidden_states, strict=False))
        chosen = [found[layer] for layer in self.layers]
        if len(chosen) == 1:
            return chosen[0]
        if self.combination == "concat":
            return torch.cat(chosen, dim=-1)
        total = chosen[0]
        for hidden in chosen[1:]:
            total = total + hidden
        return total if self.combination == "sum" else total * (1 / len(chosen))
