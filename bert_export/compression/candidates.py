"""Candidates of a search: which layers they keep, and how wide their feed-forward blocks are."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Candidate", "Shape", "candidates_of_depth", "feed_forward_widths", "widest_fast_enough"]

_WIDTH_STEP = 64
"""Widths are multiples of it, so that no kernel has a partial tile; a narrower block is left as it is."""

_WIDTH_SHARES = (1.0, 0.75, 0.5, 1 / 3, 0.25)
"""Widths that candidates have, as shares of the model's."""


@dataclass(frozen=True, order=True)
class Shape:
    """The shape that determines latency: the number of layers, and the width of their feed-forward blocks."""

    num_layers: int
    intermediate_size: int


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A smaller model, cut out of the uncompressed one."""

    layers: tuple[int, ...]
    """Indices of the layers that are kept, ascending."""
    intermediate_size: int
    """Width of the feed-forward blocks."""

    @property
    def shape(self) -> Shape:
        """The shape that determines its latency."""
        return Shape(len(self.layers), self.intermediate_size)

    @property
    def name(self) -> str:
        """A name that is also one of a folder."""
        return f"layers-{'-'.join(map(str, self.layers))}-width-{self.intermediate_size}"


def feed_forward_widths(intermediate_size: int) -> list[int]:
    """Return the widths that candidates have, the widest first."""
    shares = [round(share * intermediate_size / _WIDTH_STEP) * _WIDTH_STEP for share in _WIDTH_SHARES]
    return sorted({width for width in (*shares, intermediate_size) if 0 < width <= intermediate_size}, reverse=True)


def candidates_of_depth(influence: Sequence[float], num_layers: int, intermediate_size: int) -> list[Candidate]:
    """Return the candidates with a number of layers: which ones to keep is decided by training them.

    They keep the first layers (the best of the strategies of Sajjad et al., arXiv:2004.03844), layers evenly spread
    from the first to the last (DistilBERT, arXiv:1910.01108), and those of the largest influence (ShortGPT,
    arXiv:2403.03853).

    Args:
        influence: The influence of each layer, see `bert_models.compression.layer_influence`.
        num_layers: How many to keep.
        intermediate_size: Width of the feed-forward blocks.
    """
    total = len(influence)
    last = max(num_layers - 1, 1)
    spread = tuple(round(index * (total - 1) / last) for index in range(num_layers))
    ranked = sorted(range(total), key=lambda layer: (-influence[layer], layer))
    influential = tuple(sorted(ranked[:num_layers]))
    subsets = dict.fromkeys((tuple(range(num_layers)), spread, influential))
    return [Candidate(layers=layers, intermediate_size=intermediate_size) for layers in subsets]


def widest_fast_enough(
    depths: Sequence[int], widths: Sequence[int], speedups: dict[Shape, float], wanted: float
) -> list[Shape]:
    """Return, for every number of layers, the widest shape that is predicted to be fast enough.

    A shape that another one exceeds in one size and equals in the other is left out: its candidates would be worse.

    Args:
        depths: Numbers of layers.
        widths: Widths of the feed-forward blocks.
        speedups: The predicted speed-up of each shape over the uncompressed model.
        wanted: The least speed-up.

    Returns:
        Shapes, the most layers first; empty if no shape is fast enough.
    """
    found: list[Shape] = []
    for depth in sorted(depths, reverse=True):
        fast = [width for width in widths if speedups[Shape(depth, width)] >= wanted]
        if fast and (not found or max(fast) > found[-1].intermediate_size):
            found.append(Shape(depth, max(fast)))
    return found
