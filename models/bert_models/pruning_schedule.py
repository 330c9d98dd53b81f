"""The schedule of token pruning: the layers after whose attention tokens leave, and the share that stays."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from bert_models.errors import ConfigError

if TYPE_CHECKING:
    from bert_models.config import EncoderConfig

__all__ = ["MIN_KEPT_TOKENS", "TokenPruning", "kept_tokens", "pruning_problems"]

MIN_KEPT_TOKENS = 16
"""Tokens that stay in any case: a shorter sequence saves nothing that is worth an answer. A judgement."""

_STEP = re.compile(r"\s*(\d{1,4})\s*:\s*(0?\.\d{1,2})\s*", re.ASCII)

_HOW = (
    "write layer:share, such as 2:0.5,4:0.25 to keep half of a text's tokens from layer 2 on and a quarter from 4 on; "
    "a share has one or two decimals"
)


@dataclass(frozen=True)
class TokenPruning:
    """Which tokens of low importance leave where (PoWER-BERT, arXiv:2001.08950).

    After the attention of a layer of the schedule, the tokens stay that the query of the first token attends to most,
    on average over the heads. Of a sequence of n tokens these are ⌈share · n⌉, or `MIN_KEPT_TOKENS` if that is more,
    always with the first token. So the number depends on the sequence alone, and not on its batch.

    Raises:
        ConfigError: the layers do not rise, or the shares do not fall.
    """

    steps: tuple[tuple[int, int], ...]
    """Layers, from 1, and the percentage of the sequence's tokens that stay."""

    def __post_init__(self) -> None:
        layers, percents = zip(*self.steps, strict=True) if self.steps else ((), ())
        in_range = all(layer >= 1 for layer in layers) and all(0 < percent < 100 for percent in percents)
        if not self.steps or not in_range or [*layers] != sorted(set(layers)):
            raise ConfigError(f"expected layers in ascending order, with shares between 0 and 1, found {self}; {_HOW}")
        if [*percents] != sorted(set(percents), reverse=True):
            raise ConfigError(
                f"expected shares of the whole text, which fall from layer to layer, found {self}; {_HOW}"
            )

    @classmethod
    def parse(cls, text: Any) -> Self:
        """Read a schedule such as `2:0.5,4:0.25`.

        Raises:
            ConfigError: it is malformed.
        """
        matches = [_STEP.fullmatch(part) for part in text.split(",")] if isinstance(text, str) else [None]
        if not all(matches):
            raise ConfigError(f"expected a schedule of token pruning, found {text!r:.80}; {_HOW}")
        return cls(tuple((int(match[1]), round(100 * float(match[2]))) for match in matches if match is not None))

    @classmethod
    def in_thirds(cls, num_layers: int, percent: int) -> Self:
        """Return the schedule in which a percentage stays after a third of the layers, and its square after two thirds.

        Args:
            num_layers: the encoder's layers, at least 2; with 2, tokens leave after the first one alone.
            percent: percentage of a text's tokens.
        """
        layers = sorted({max(1, num_layers // 3), max(1, 2 * num_layers // 3)} - {num_layers})
        return cls(tuple(zip(layers, (percent, -(-percent * percent // 100)), strict=False)))

    def __str__(self) -> str:
        return ",".join(f"{layer}:{percent / 100:g}" for layer, percent in self.steps)

    @property
    def percents(self) -> dict[int, int]:
        """The percentage by layer."""
        return dict(self.steps)


def kept_tokens(length: int, percent: int) -> int:
    """Return how many tokens of a sequence of `length` tokens stay."""
    return max(1, -(-length * percent // 100), min(length, MIN_KEPT_TOKENS))


def pruning_problems(config: "EncoderConfig") -> Iterator[str]:
    """Return what is wrong with the token pruning of an encoder."""
    if (pruning := config.token_pruning) is None:
        return
    if config.positions not in ("absolute", "after_padding") or config.relative_buckets is not None:
        yield (
            "token pruning needs positions that the embeddings alone add, as in BERT and RoBERTa; those of "
            f"{config.family} are read in attention, which would need the distances of the tokens that are left"
        )
    elif config.norm_first:
        yield "token pruning is not supported together with norm_first"
    if (last := pruning.steps[-1][0]) >= config.num_layers:
        yield (
            f"expected token pruning in the layers 1 to {config.num_layers - 1}, found layer {last}: nothing is left "
            "to be saved in the last one"
        )
