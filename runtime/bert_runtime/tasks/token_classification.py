"""token-classification: a label for every token, and the entities that labels of neighbours make."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_runtime.crf import bio_transitions, is_bio, marginals, viterbi
from bert_runtime.errors import BundleError, DataError
from bert_runtime.metrics import accuracy, entity_f1
from bert_runtime.numerics import FloatArray, softmax
from bert_runtime.records import Record
from bert_runtime.tasks.base import Example, Outputs, Result
from bert_runtime.tasks.checks import check_flag, check_strings
from bert_runtime.tasks.tokens import TextTokens, TokenTask, find_first_tokens, join_words, merge_windows

__all__ = ["AGGREGATIONS", "OUTSIDE", "Entities", "Entity", "TokenClassification"]

AGGREGATIONS = ("none", "simple", "first", "average", "max")
"""How labels of tokens become entities. `none`: each token on its own. `simple`: neighbours of one type together. The
others label each word of the tokenizer as a whole before that, by its first token, by the mean of its tokens'
probabilities, or by its surest token."""

OUTSIDE = "O"
"""The label of tokens that belong to no entity; they are left out of answers."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A part of a text with a label."""

    label: str
    """The entity's type, without `B-` or `I-`; for the aggregation `none` the token's label as it stands."""
    score: float
    """Mean probability of the labels it was made of, in [0, 1]."""
    text: str
    start: int
    """Its first character."""
    end: int
    """The character after its last."""


@dataclass(frozen=True, slots=True, eq=False)
class Entities(Result):
    """What was found in one text, in its order."""

    entities: tuple[Entity, ...]
    tokens: TextTokens = field(repr=False)
    """The tokens of the text with the model's raw outputs for them [T, labels]."""
    labels: tuple[str, ...] = field(repr=False)
    aggregated: bool = True
    indices: tuple[int, ...] = field(default=(), repr=False)
    """Without aggregation, for each entity its place in `tokens`."""

    def to_dict(self) -> Any:
        if self.aggregated:
            return [
                {
                    "entity_group": each.label,
                    "score": each.score,
                    "word": each.text,
                    "start": each.start,
                    "end": each.end,
                }
                for each in self.entities
            ]
        return [
            {
                "entity": each.label,
                "score": each.score,
                "index": int(self.tokens.indices[i]),
                "word": self.tokens.strings[i],
                "start": each.start,
                "end": each.end,
            }
            for i, each in zip(self.indices, self.entities, strict=True)
        ]

    def summary(self) -> str:
        return ", ".join(f"{each.label} {each.text!r} {each.score:.4f}" for each in self.entities) or "none"


class _Labelled(NamedTuple):
    """Units of a text, tokens or words, with the label that was chosen for each of the U."""

    spans: NDArray[np.int64]
    """Characters of each [U, 2]."""
    labels: NDArray[np.int64]
    scores: FloatArray
    """Probability of each label [U]."""


@dataclass(frozen=True, kw_only=True)
class TokenClassification(TokenTask):
    """A label of `labels` for every token, decided one by one or, with `crf` or `bio`, as a sequence of words."""

    labels: tuple[str, ...]
    aggregation: str = "simple"
    """One of `AGGREGATIONS`."""
    bio: bool = False
    """Whether sequences are held to BIO: an `I-X` only after `B-X` or `I-X`."""
    crf: bool = False
    """Whether a linear chain over the words' first tokens was trained on top."""
    transitions: tuple[tuple[float, ...], ...] = ()
    """The chain's scores, see `bert_runtime.crf`: from label to label, then of starting and of ending with each
    [labels + 2, labels]. Known once it has been trained."""

    name: ClassVar[str] = "token-classification"
    output: ClassVar[str] = "logits"

    def __post_init__(self) -> None:
        check_strings("labels", self.labels)
        check_flag("bio", self.bio)
        check_flag("crf", self.crf)
        if len(self.labels) < 2 or len(set(self.labels)) != len(self.labels):
            raise ValueError(f"expected at least two labels, all different, found {list(self.labels)}")
        if self.aggregation not in AGGREGATIONS:
            raise ValueError(f"expected an aggregation of {', '.join(AGGREGATIONS)}, found {self.aggregation!r}")
        if self.bio and not is_bio(self.labels):
            raise ValueError(f"bio needs labels O, B-… and I-…, found {', '.join(self.labels)}")
        if self.transitions:
            if not np.isfinite([score for row in self.transitions for score in row]).all():
                raise ValueError("transitions must be finite")
            if not self.crf:
                raise ValueError("transitions belong to a crf")
            sizes = {len(row) for row in self.transitions}
            if len(self.transitions) != len(self.labels) + 2 or sizes != {len(self.labels)}:
                raise ValueError(f"expected transitions of {len(self.labels) + 2} rows of {len(self.labels)} numbers")

    @classmethod
    def from_dict(cls, settings: Any) -> "TokenClassification":
        """The inverse of `to_dict`."""
        try:
            rows = tuple(tuple(float(score) for score in row) for row in settings.get("transitions") or ())
        except (TypeError, ValueError) as error:
            raise BundleError(f"settings of task {cls.name!r}: transitions are malformed: {error}") from None
        return super().from_dict({**settings, "transitions": rows})

    @property
    def options(self) -> tuple[str, ...]:
        """How labels become entities."""
        return ("aggregation", "bio")

    @property
    def metric(self) -> str:
        """F1 of whole entities where the labels are BIO, else the share of right words."""
        return "f1" if is_bio(self.labels) else "accuracy"

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Equal labels on 98 % of the words; most are outside of any entity."""
        return "label_agreement", 0.98

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values; those of sequences only where they decide something."""
        settings = super().to_dict()
        for key in ("bio", "crf", "transitions"):
            if not settings[key]:
                del settings[key]
        return settings

    def decode(self, outputs: Outputs) -> Result:
        """Logits [length, labels] of each window → the entities."""
        tokens = merge_windows(outputs)
        labelled = self._labelled(tokens)
        text = outputs.input.text
        if self.aggregation == "none":
            rows = zip(*(each.tolist() for each in labelled), strict=True)
            found = [
                (i, Entity(self.labels[label], score, text[start:end], start, end))
                for i, ((start, end), label, score) in enumerate(rows)
                if self.labels[label] != OUTSIDE
            ]
            entities = tuple(entity for _, entity in found)
            return Entities(entities, tokens, self.labels, False, tuple(i for i, _ in found))
        return Entities(tuple(self._grouped(labelled, text)), tokens, self.labels)

    def _labelled(self, tokens: TextTokens) -> _Labelled:
        """Each token or word with its label."""
        scores = softmax(tokens.values)
        sequence = self.crf or self.bio
        by_word = self.aggregation not in ("none", "simple") or (sequence and self.aggregation != "none")
        if not (by_word or sequence) or not len(scores):
            return _Labelled(tokens.offsets, scores.argmax(axis=-1), scores.max(axis=-1, initial=0))
        firsts = tokens.word_starts
        if sequence:
            labels, chances = self._sequence(tokens.values[firsts])
        else:
            pooled = self._word_scores(scores, firsts)
            labels, chances = pooled.argmax(axis=-1), pooled.max(axis=-1)
        if not by_word:  # every token of a word gets the word's label
            word = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(scores)))
            inside = self._inside()[labels[word]]
            inside[firsts] = labels
            return _Labelled(tokens.offsets, inside, chances[word])
        lasts = np.append(firsts[1:], len(scores)) - 1
        return _Labelled(np.stack([tokens.offsets[firsts, 0], tokens.offsets[lasts, 1]], axis=1), labels, chances)

    def _inside(self) -> NDArray[np.int64]:
        """For each label that of a further token of the same word: `I-X` for `B-X`, where there is one."""
        names = [f"I-{label[2:]}" if label.startswith("B-") else label for label in self.labels]
        return np.array([self.labels.index(name) if name in self.labels else i for i, name in enumerate(names)])

    def _word_scores(self, scores: FloatArray, firsts: NDArray[np.int64]) -> FloatArray:
        """Probabilities of tokens [T, labels] → of words [W, labels], as the aggregation says."""
        if self.aggregation == "first":
            return scores[firsts]
        counts = np.diff(firsts, append=len(scores))
        if self.aggregation == "average":
            mean: FloatArray = np.add.reduceat(scores, firsts, axis=0) / counts[:, None].astype(scores.dtype)
            return mean
        surest = [
            first + int(scores[first : first + n].max(axis=-1).argmax())
            for first, n in zip(firsts, counts, strict=True)
        ]
        return scores[surest]

    def _sequence(self, logits: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
        """The best sequence of labels for the first tokens of words [W, labels], and how probable each of it is."""
        transitions = np.array(self.transitions or np.zeros((len(self.labels) + 2, len(self.labels))), dtype=np.float32)
        if self.bio:
            transitions = bio_transitions(self.labels, transitions)
        labels = viterbi(logits, transitions)
        return labels, marginals(logits, transitions)[np.arange(len(labels)), labels]

    def _grouped(self, labelled: _Labelled, text: str) -> Iterator[Entity]:
        """Neighbours of one type as one entity; a `B-` begins another."""
        types = [label[2:] if label.startswith(("B-", "I-")) else label for label in self.labels]
        kinds = [types[label] for label in labelled.labels]
        begins = [self.labels[label].startswith("B-") for label in labelled.labels]
        changes = [i for i, kind in enumerate(kinds) if i == 0 or begins[i] or kind != kinds[i - 1]]
        for first, after in pairwise([*changes, len(kinds)]):
            if kinds[first] != OUTSIDE:
                start, end = int(labelled.spans[first, 0]), int(labelled.spans[after - 1, 1])
                yield Entity(kinds[first], float(labelled.scores[first:after].mean()), text[start:end], start, end)

    def example(self, record: Record) -> Example:
        """A sentence of words with a tag each."""
        text, spans = join_words(record.tokens())
        tags = record.tags()
        strange = sorted(set(tags) - set(self.labels))
        if strange:
            raise DataError(
                f"{record.where}: tags {', '.join(map(repr, strange))} are not among the model's {len(self.labels)} "
                f"labels ({', '.join(self.labels[:10])}{', …' if len(self.labels) > 10 else ''})"
            )
        return Example((text,), (spans, np.array([self.labels.index(tag) for tag in tags], dtype=np.int64)))

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """A word's label is that of its first token; a word the tokenizer leaves out counts as outside, or wrong."""
        predicted = [
            self._word_labels(each, example.target[0]) for each, example in zip(outputs, examples, strict=True)
        ]
        expected = [example.target[1] for example in examples]
        right = accuracy(np.concatenate(predicted), np.concatenate(expected))
        if not is_bio(self.labels):
            return {"accuracy": right}
        names = (*self.labels, OUTSIDE)  # -1, a word without tokens where no label says so
        tags = [[[names[label] for label in row] for row in rows] for rows in (predicted, expected)]
        return {**entity_f1(*tags), "accuracy": right}

    def _word_labels(self, outputs: Outputs, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """The labels of given words [W]."""
        tokens = merge_windows(outputs)
        firsts = find_first_tokens(tokens.offsets, words)
        known = firsts >= 0
        labels = np.full(len(words), self.labels.index(OUTSIDE) if OUTSIDE in self.labels else -1)
        labels[known] = self._best(tokens.values[firsts[known]])
        return labels

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        """Labels are compared as they are decoded: word by word, by the first token of each."""
        found, expected = ([merge_windows(each) for each in part] for part in (outputs, reference))
        labels = [
            np.concatenate([self._best(each.values[each.word_starts]) for each in part]) for part in (found, expected)
        ]
        values = [np.concatenate([each.values for each in part]) for part in (found, expected)]
        difference = np.abs(values[0] - values[1])
        return {
            "label_agreement": accuracy(*labels),
            "mean_abs_logit_drift": float(difference.mean()),
            "max_abs_logit_drift": float(difference.max()),
        }

    def _best(self, logits: FloatArray) -> NDArray[np.int64]:
        """The labels of words by the logits of their first tokens [W, labels], as a sequence or each on its own."""
        return self._sequence(logits)[0] if self.crf or self.bio else logits.argmax(axis=-1)
