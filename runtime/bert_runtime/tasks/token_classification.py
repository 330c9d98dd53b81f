"""token-classification: label every token, and merge tokens into entities."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bert_runtime.crf import bio_transitions, is_bio, marginals, viterbi
from bert_runtime.errors import BundleError, DataError
from bert_runtime.metrics import accuracy, entity_f1, logit_drift, mark_entities
from bert_runtime.numerics import FloatArray, IntArray, softmax
from bert_runtime.records import Record
from bert_runtime.tasks.checks import check_flag, check_strings
from bert_runtime.tasks.entities import Entities, Entity
from bert_runtime.tasks.tokens import (
    TextTokens,
    TokenTask,
    find_first_tokens,
    first_visible,
    join_words,
    merge_windows,
    word_spans,
    word_vectors,
)
from bert_runtime.tasks.values import Example, Outputs, Result

__all__ = ["AGGREGATIONS", "OUTSIDE", "TokenClassification"]

AGGREGATIONS = ("none", "simple", "first", "average", "max")
"""How labelled tokens are merged into entities, as in the Hugging Face pipeline.

`none` returns every token on its own; `simple` merges neighbouring tokens of one type. The others first label whole
words, and then merge neighbouring words: `first` by the word's first token, `average` by the mean of its tokens'
probabilities, `max` by the token with the highest probability."""

OUTSIDE = "O"
"""Label of tokens that belong to no entity; results leave them out."""


class _Labelled(NamedTuple):
    """U labelled units of a text: tokens or words."""

    spans: NDArray[np.int64]
    """Start and end character of each unit [U, 2]."""
    labels: NDArray[np.int64]
    """Index of each unit's label [U]."""
    scores: FloatArray
    """Probability of each unit's label [U]."""


@dataclass(frozen=True, kw_only=True)
class TokenClassification(TokenTask):
    """A label for every token, predicted independently or, with `crf` or `bio`, as the best sequence over words."""

    labels: tuple[str, ...]
    """Names of the labels, in the order of the logits."""
    aggregation: str = "simple"
    """How tokens are merged into entities, one of `AGGREGATIONS`."""
    bio: bool = False
    """Whether only valid BIO sequences are predicted: `I-X` only after `B-X` or `I-X`.

    `bert-export train` turns it on for BIO tags. The Hugging Face pipeline does not have it: its answers are those of
    `with_options(bio=False)`.
    """
    crf: bool = False
    """Whether the head has a linear-chain CRF over the words' first tokens."""
    transitions: tuple[tuple[float, ...], ...] = ()
    """Transition scores of the CRF [labels + 2, labels], see `bert_runtime.crf`: from label to label, then of starting
    and of ending with each label. Empty before training."""

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
            self._check_transitions()

    def _check_transitions(self) -> None:
        if not np.isfinite([score for row in self.transitions for score in row]).all():
            raise ValueError("transitions must be finite")
        if not self.crf:
            raise ValueError("transitions belong to a crf")
        widths = {len(row) for row in self.transitions}
        if len(self.transitions) != len(self.labels) + 2 or widths != {len(self.labels)}:
            raise ValueError(f"expected transitions of {len(self.labels) + 2} rows of {len(self.labels)} numbers")

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        try:
            rows = tuple(tuple(float(score) for score in row) for row in settings.get("transitions") or ())
        except (TypeError, ValueError) as error:
            raise BundleError(f"settings of task {cls.name!r}: transitions are malformed: {error}") from None
        return super().from_dict({**settings, "transitions": rows})

    @property
    def options(self) -> tuple[str, ...]:
        """How labels are predicted and merged into entities."""
        return ("aggregation", "bio")

    @property
    def output_width(self) -> int:
        """One logit per label."""
        return len(self.labels)

    @property
    def metric(self) -> str:
        """F1 of entities where the labels mark them, as BIO and BIOES do, else the accuracy over words."""
        return "f1" if mark_entities(self.labels) else "accuracy"

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Equal labels for 98 % of the words, most of which are in no entity."""
        return "label_agreement", 0.98

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, those of sequences only where they are set."""
        settings = super().to_dict()
        for key in ("bio", "crf", "transitions"):
            if not settings[key]:
                del settings[key]
        return settings

    def decode(self, outputs: Outputs) -> Result:
        """Label the tokens by the logits [tokens, labels] of each window, and merge them into entities."""
        tokens = merge_windows(outputs)
        labelled = self._label(tokens)
        text = outputs.input.text
        if self.aggregation != "none":
            return Entities(tuple(self._merge(labelled, text)), tokens, self.labels)
        units = zip(*(array.tolist() for array in labelled), strict=True)
        found = {
            i: _entity(self.labels[label], score, text, *span)
            for i, (span, label, score) in enumerate(units)
            if self.labels[label] != OUTSIDE
        }
        return Entities(tuple(found.values()), tokens, self.labels, False, tuple(found))

    def _label(self, tokens: TextTokens) -> _Labelled:
        """Label each token, or each word where the aggregation does."""
        scores = softmax(tokens.values)
        is_sequence = self.crf or self.bio
        by_word = self.aggregation not in ("none", "simple") or (is_sequence and self.aggregation != "none")
        if not (by_word or is_sequence) or not len(scores):
            return _Labelled(tokens.offsets, scores.argmax(axis=-1), scores.max(axis=-1, initial=0))
        starts = tokens.word_starts
        if is_sequence:
            labels, probabilities = self._best_sequence(tokens.values[starts])
        else:
            pooled = self._pool_words(scores, starts)
            labels, probabilities = pooled.argmax(axis=-1), pooled.max(axis=-1)
        if not by_word:  # every token of a word gets the word's label
            word = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(scores)))
            token_labels = self._inside_labels()[labels[word]]
            token_labels[starts] = labels
            return _Labelled(tokens.offsets, token_labels, probabilities[word])
        return _Labelled(word_spans(tokens.offsets, starts), labels, probabilities)

    def _inside_labels(self) -> NDArray[np.int64]:
        """Return for each label the one of further tokens of the same word: `I-X` for `B-X`, where there is one."""
        names = [f"I-{label[2:]}" if label.startswith("B-") else label for label in self.labels]
        return np.array([self.labels.index(name) if name in self.labels else i for i, name in enumerate(names)])

    def _pool_words(self, scores: FloatArray, starts: NDArray[np.int64]) -> FloatArray:
        """Pool the probabilities of tokens [T, labels] to those of words [W, labels], by the aggregation."""
        if self.aggregation != "max":
            return word_vectors(scores, starts, mean=self.aggregation == "average")
        counts = np.diff(starts, append=len(scores))
        most_probable = [
            start + int(scores[start : start + n].max(axis=-1).argmax())
            for start, n in zip(starts, counts, strict=True)
        ]
        return scores[most_probable]

    def _best_sequence(self, logits: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
        """Return the best label sequence for the logits of W words [W, labels], and its marginals: two [W]."""
        transitions = self._transition_scores()
        labels = viterbi(logits, transitions)
        return labels, marginals(logits, transitions)[np.arange(len(labels)), labels]

    def _transition_scores(self) -> FloatArray:
        """Return the scores of transitions [labels + 2, labels], with those that `bio` forbids."""
        transitions = np.array(self.transitions or np.zeros((len(self.labels) + 2, len(self.labels))), dtype=np.float32)
        return bio_transitions(self.labels, transitions) if self.bio else transitions

    def _merge(self, labelled: _Labelled, text: str) -> Iterator[Entity]:
        """Merge neighbours of one type into one entity, which has their mean score; `B-` starts another."""
        label_types = [label[2:] if label.startswith(("B-", "I-")) else label for label in self.labels]
        types = [label_types[label] for label in labelled.labels]
        begins = [self.labels[label].startswith("B-") for label in labelled.labels]
        starts = [i for i, kind in enumerate(types) if i == 0 or begins[i] or kind != types[i - 1]]
        if not starts:
            return
        ends = [*starts[1:], len(types)]
        sums = np.add.reduceat(labelled.scores, starts)  # one call, not one for each of as many entities as words
        spans = labelled.spans.tolist()
        for first, after, total in zip(starts, ends, sums.tolist(), strict=True):
            if types[first] != OUTSIDE:
                name = self.labels[labelled.labels[first]].split("-", 1)[-1]
                yield _entity(name, total / (after - first), text, spans[first][0], spans[after - 1][1])

    def example(self, record: Record) -> Example:
        """Convert a row of words with a tag each."""
        text, spans = join_words(record.tokens())
        tags = record.tags()
        unknown = sorted(set(tags) - set(self.labels))
        if unknown:
            raise DataError(
                f"{record.where}: tags {', '.join(map(repr, unknown))} are not among the model's {len(self.labels)} "
                f"labels ({', '.join(self.labels[:10])}{', …' if len(self.labels) > 10 else ''})"
            )
        return Example((text,), (spans, np.array([self.labels.index(tag) for tag in tags], dtype=np.int64)))

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """Compute the accuracy over words and, where labels mark entities, precision, recall and F1 of these.

        A word's label is that of its first token. A word that the tokenizer drops counts as `O`, or as wrong where no
        label is `O`.
        """
        predicted = [
            self._word_labels(*_word_logits(output, example.target[0]))
            for output, example in zip(outputs, examples, strict=True)
        ]
        expected = [example.target[1] for example in examples]
        right = accuracy(np.concatenate(predicted), np.concatenate(expected))
        if not mark_entities(self.labels):
            return {"accuracy": right}
        names = (*self.labels, OUTSIDE)  # index -1 is a dropped word
        tags = [[[names[label] for label in labels] for labels in part] for part in (predicted, expected)]
        return {**entity_f1(*tags), "accuracy": right}

    def _word_labels(self, known: NDArray[np.bool_], logits: FloatArray) -> NDArray[np.int64]:
        """Return the label indices [W] of words, see `_word_logits`."""
        labels = np.full(len(known), self.labels.index(OUTSIDE) if OUTSIDE in self.labels else -1)
        labels[known] = self._best_labels(logits)
        return labels

    def predict_words(self, outputs: Outputs, words: IntArray) -> tuple[IntArray, FloatArray]:
        """Label words, as `score` does.

        Args:
            outputs: the outputs for one text.
            words: start and end character of each word: [W, 2].

        Returns:
            Label index of each word [W], -1 for one that the tokenizer drops where no label is `O`; and the
            probabilities of its labels [W, labels], marginals where sequences are decoded, NaN for a dropped word.
        """
        known, logits = _word_logits(outputs, words)
        is_sequence = (self.crf or self.bio) and len(logits) > 0
        probabilities = np.full((len(words), len(self.labels)), np.nan, dtype=logits.dtype)
        probabilities[known] = marginals(logits, self._transition_scores()) if is_sequence else softmax(logits)
        return self._word_labels(known, logits), probabilities

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        """Compare labels as they are decoded, word by word, and logits."""
        found, expected = ([merge_windows(output) for output in part] for part in (outputs, reference))
        labels = [
            np.concatenate([self._best_labels(tokens.values[tokens.word_starts]) for tokens in part])
            for part in (found, expected)
        ]
        values = [np.concatenate([tokens.values for tokens in part]) for part in (found, expected)]
        return {"label_agreement": accuracy(*labels), **logit_drift(*values)}

    def _best_labels(self, logits: FloatArray) -> NDArray[np.int64]:
        """Return the label indices [W] for the logits of the words' first tokens [W, labels]."""
        return self._best_sequence(logits)[0] if self.crf or self.bio else logits.argmax(axis=-1)


def _word_logits(outputs: Outputs, words: IntArray) -> tuple[NDArray[np.bool_], FloatArray]:
    """Return which words, given by their characters [W, 2], the tokenizer keeps, and the logits of their first tokens.

    Two arrays: bool [W], and float32 [kept words, labels].
    """
    tokens = merge_windows(outputs)
    first = find_first_tokens(tokens.offsets, words)
    known = first >= 0
    return known, tokens.values[first[known]]


def _entity(name: str, score: float, text: str, start: int, end: int) -> Entity:
    """Return the entity of a span, without white space before it."""
    start = first_visible(text, start, end)
    return Entity(name, score, text[start:end], start, end)
