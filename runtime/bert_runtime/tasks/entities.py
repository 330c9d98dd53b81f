"""Results of token-classification: the entities of a text."""

from dataclasses import dataclass, field
from typing import Any

from bert_runtime.tasks.tokens import TextTokens
from bert_runtime.tasks.values import Result

__all__ = ["Entities", "Entity"]


@dataclass(frozen=True, slots=True)
class Entity:
    """A labelled span of a text."""

    label: str
    """Type of the entity, without `B-` or `I-`; with the aggregation `none`, the token's label with its prefix."""
    score: float
    """Mean probability of the labels of its tokens or words, in [0, 1]."""
    text: str
    """The span's text."""
    start: int
    """Index of the first character."""
    end: int
    """Index after the last character."""


@dataclass(frozen=True, slots=True, eq=False)
class Entities(Result):
    """The entities of one text, in the order of the text.

    As JSON: a list of `{"entity_group": "LOC", "score": 0.99, "word": "Paris", "start": 0, "end": 5}`. With the
    aggregation `none`: a list of `{"entity": "B-LOC", "score": 0.99, "index": 1, "word": "paris", "start": 0,
    "end": 5}`, where `word` is the token and `index` its index in the window.
    """

    entities: tuple[Entity, ...]
    """The entities; without aggregation, the tokens whose label is not `O`."""
    tokens: TextTokens = field(repr=False)
    """The T tokens of the text with their raw outputs: float32 [T, labels]."""
    labels: tuple[str, ...] = field(repr=False)
    """Names of the labels, in the order of the raw outputs."""
    aggregated: bool = True
    """Whether tokens were merged into entities."""
    indices: tuple[int, ...] = field(default=(), repr=False)
    """Without aggregation, the index in `tokens` of each entity."""

    def to_dict(self) -> Any:
        if self.aggregated:
            return [
                {
                    "entity_group": entity.label,
                    "score": entity.score,
                    "word": entity.text,
                    "start": entity.start,
                    "end": entity.end,
                }
                for entity in self.entities
            ]
        return [
            {
                "entity": entity.label,
                "score": entity.score,
                "index": int(self.tokens.indices[i]),
                "word": self.tokens.strings[i],
                "start": entity.start,
                "end": entity.end,
            }
            for i, entity in zip(self.indices, self.entities, strict=True)
        ]

    def summary(self) -> str:
        return ", ".join(f"{entity.label} {entity.text!r} {entity.score:.4f}" for entity in self.entities) or "none"
