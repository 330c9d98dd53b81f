"""Candidates of a search: which layers they keep, how wide these are, and how many tokens they work on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from bert_models.distillation.layers import evenly_spaced_layers
from bert_models.pruning_schedule import TokenPruning

__all__ = [
    "ALL_TOKENS",
    "KEPT_PERCENTS",
    "Candidate",
    "Shape",
    "candidates_of_shape",
    "feed_forward_widths",
    "narrowed",
    "narrower_widths",
    "shapes_within",
    "widest_fast_enough",
]

ALL_TOKENS = 100
"""Percentage of a text's tokens that stays where none are pruned."""

KEPT_PERCENTS = (ALL_TOKENS, 70, 50, 30)
"""Percentages of a text's tokens that candidates keep, see `TokenPruning.in_thirds`."""

_WIDTH_STEP = 64
"""Widths are multiples of it, so that no kernel has a partial tile; a narrower block is left as it is."""

_MIN_NARROWED_SHARE = 0.75
"""Share of its neurons that a trained candidate keeps at least when it is narrowed; a judgement."""

_NARROWING_MARGIN = 1.01
"""By how much a narrowed candidate is predicted to exceed the speed that is asked for; a judgement."""

_MIN_WIDTH_SHARE = 0.25
"""Share of the model's width that candidates have at least; a judgement."""


@dataclass(frozen=True, order=True)
class Shape:
    """The shape that determines latency: layers, the width of their feed-forward blocks, and the tokens they see."""

    num_layers: int
    intermediate_size: int
    kept_percent: int = ALL_TOKENS
    """Percentage of a text's tokens that stays after a third of the layers."""

    @property
    def token_pruning(self) -> TokenPruning | None:
        """The schedule by which tokens leave; `None` if all stay."""
        return None if self.kept_percent == ALL_TOKENS else TokenPruning.in_thirds(self.num_layers, self.kept_percent)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A smaller model, cut out of the uncompressed one."""

    layers: tuple[int, ...]
    """Indices of the layers that are kept, ascending."""
    intermediate_size: int
    """Width of the feed-forward blocks."""
    kept_percent: int = ALL_TOKENS
    """Percentage of a text's tokens that stays after a third of the layers that are kept."""

    @property
    def shape(self) -> Shape:
        """The shape that determines its latency."""
        return Shape(len(self.layers), self.intermediate_size, self.kept_percent)

    @property
    def name(self) -> str:
        """A name that is also one of a folder."""
        tokens = "" if self.kept_percent == ALL_TOKENS else f"-tokens-{self.kept_percent}"
        return f"layers-{'-'.join(map(str, self.layers))}-width-{self.intermediate_size}{tokens}"


def feed_forward_widths(intermediate_size: int) -> list[int]:
    """Return the widths that candidates have, the widest first."""
    return [intermediate_size, *_widths_from(_MIN_WIDTH_SHARE * intermediate_size, intermediate_size)]


def narrower_widths(intermediate_size: int) -> list[int]:
    """Return the widths that a trained candidate can be narrowed to, the widest first."""
    return _widths_from(_MIN_NARROWED_SHARE * intermediate_size, intermediate_size)


def _widths_from(least: float, limit: int) -> list[int]:
    """Return the multiples of `_WIDTH_STEP` that are at least `least` and below `limit`, in descending order."""
    widths = range((limit - 1) // _WIDTH_STEP * _WIDTH_STEP, 0, -_WIDTH_STEP)
    return [width for width in widths if width >= least]


def narrowed(candidate: Candidate, wanted: float, milliseconds: Callable[[Shape], float]) -> Candidate | None:
    """Return a trained candidate with as few neurons less as make it faster by some factor, or `None` if none do.

    Args:
        candidate: the candidate.
        wanted: how many times as fast it must become.
        milliseconds: the predicted latency of a shape.
    """
    for width in narrower_widths(candidate.intermediate_size):
        narrower = replace(candidate, intermediate_size=width)
        if milliseconds(candidate.shape) >= wanted * _NARROWING_MARGIN * milliseconds(narrower.shape):
            return narrower
    return None


def shapes_within(full: Shape, percents: Sequence[int]) -> list[Shape]:
    """Return the shapes that candidates may have; a single layer has nothing to prune tokens for.

    Args:
        full: the shape of the uncompressed model.
        percents: percentages of a text's tokens that candidates keep.
    """
    depths, widths = range(1, full.num_layers + 1), feed_forward_widths(full.intermediate_size)
    return [
        Shape(depth, width, percent)
        for depth, width, percent in product(depths, widths, percents)
        if percent == ALL_TOKENS or depth > 1
    ]


def candidates_of_shape(influence: Sequence[float], shape: Shape) -> list[Candidate]:
    """Return the candidates of a shape: which layers to keep is decided by training them.

    They keep layers evenly spread from the first to the last (DistilBERT, arXiv:1910.01108), the first layers (the best
    of the strategies of Sajjad et al., arXiv:2004.03844), and those of the largest influence (ShortGPT,
    arXiv:2403.03853), in this order.

    Args:
        influence: the influence of each layer, see `bert_models.compression.layer_influence`.
        shape: the number of layers, and what all of them have in common.
    """
    total, num_layers = len(influence), shape.num_layers
    spread = tuple(evenly_spaced_layers(total, num_layers))
    ranked = sorted(range(total), key=lambda layer: (-influence[layer], layer))
    influential = tuple(sorted(ranked[:num_layers]))
    subsets = dict.fromkeys((spread, tuple(range(num_layers)), influential))
    return [
        Candidate(layers=layers, intermediate_size=shape.intermediate_size, kept_percent=shape.kept_percent)
        for layers in subsets
    ]


def widest_fast_enough(speedups: Mapping[Shape, float], wanted: float) -> list[Shape]:
    """Return, for every number of layers and share of tokens, the widest shape that is predicted to be fast enough.

    A shape that another one exceeds in one size and equals in the others is left out: its candidates would be worse.

    Args:
        speedups: the predicted speed-up over the uncompressed model of every shape that there may be.
        wanted: the least speed-up.

    Returns:
        Shapes, the most tokens first, and of these the most layers; empty if no shape is fast enough.
    """
    widest: dict[tuple[int, int], Shape] = {}
    for shape, speedup in sorted(speedups.items(), key=lambda item: item[0].intermediate_size):
        if speedup >= wanted:
            widest[shape.num_layers, shape.kept_percent] = shape
    fast = list(widest.values())
    largest = [shape for shape in fast if not any(_exceeds(other, shape) for other in fast)]
    return sorted(largest, key=lambda shape: (-shape.kept_percent, -shape.num_layers))


def _exceeds(shape: Shape, other: Shape) -> bool:
    """Return whether a shape is as large as another one in every size, and larger in one."""
    return shape != other and all(
        getattr(shape, name) >= getattr(other, name) for name in ("num_layers", "intermediate_size", "kept_percent")
    )
