"""Texts and candidate labels through a model of natural language inference."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, cast, overload

import numpy as np
from tokenizers import Encoding

from bert_runtime.batching.streaming import EncodedInput, stream_results
from bert_runtime.cascade.task import CascadeTask
from bert_runtime.errors import InputError
from bert_runtime.inputs import Column, InputFailure, OnError, SingleInput, check_column
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray, softmax
from bert_runtime.tasks import Outputs, TextInput
from bert_runtime.tasks.reranking import is_truncated
from bert_runtime.zero_shot.entailment import EntailmentLabels
from bert_runtime.zero_shot.hypotheses import DEFAULT_TEMPLATE, make_hypotheses, read_labels
from bert_runtime.zero_shot.result import ZeroShotClassification

__all__ = ["ZeroShotClassifier"]

_MAX_PAIRS = 2_048
"""Pairs that are joined and run together, one text's at least: enough for batches of similar length, with little held
in memory. A judgement."""


class ZeroShotClassifier:
    """Classifies texts by labels of the caller's choice, without training for them.

    Each label becomes a hypothesis, and a text-classification model of natural language inference says whether a text
    entails it (Yin et al., 2019, arXiv:1909.00161). Scores are those of the pipeline `zero-shot-classification` of
    transformers:

        classifier = ZeroShotClassifier(load("nli-bundle"), ["sports", "politics"])
        classifier("Who won the match?")            # one text: one ZeroShotClassification
        classifier(["Who won the match?", "…"])     # a list: a list of results in the same order
        classifier.stream(lines)                    # an iterator: results one by one

    The hypotheses are tokenized once, here, and each text once. Safe to call from many threads.

    Args:
        model: a loaded text-classification bundle of pairs, one of whose labels is named `entailment`.
        candidate_labels: the labels; or one text with commas between them.
        hypothesis_template: the sentence that is made of a label, with `{}` in its place.
        multi_label: whether several labels may fit a text. Then each is judged alone, entailment against contradiction;
            otherwise a softmax over all labels' entailment logits makes the scores sum to 1. A single label is always
            judged alone.

    Raises:
        InputError: the model is not one of natural language inference, or a label or the template cannot be used.
    """

    def __init__(
        self,
        model: Model,
        candidate_labels: str | Sequence[str],
        *,
        hypothesis_template: str = DEFAULT_TEMPLATE,
        multi_label: bool = False,
    ) -> None:
        if isinstance(model.task, CascadeTask):
            raise InputError("a cascade has labels of its own; for labels of your choice load its folder large")
        self.model = model
        self.labels = read_labels(candidate_labels)
        """The candidate labels."""
        self.multi_label = multi_label
        self._entailment = EntailmentLabels.of(model.task)
        self._joiner = model.tokenizer.pair_joiner
        self._hypotheses = self._tokenize_hypotheses(hypothesis_template)

    def __repr__(self) -> str:
        return f"ZeroShotClassifier({self.model!r}, {len(self.labels)} labels)"

    @overload
    def __call__(self, inputs: SingleInput) -> ZeroShotClassification: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(
        self, inputs: Sequence[SingleInput] | Column, *, on_error: Literal["raise", "skip"] = "raise"
    ) -> list[ZeroShotClassification]: ...

    @overload
    def __call__(
        self, inputs: Sequence[SingleInput] | Column, *, on_error: Literal["return"]
    ) -> list[ZeroShotClassification | InputFailure]: ...

    def __call__(
        self, inputs: SingleInput | Sequence[SingleInput] | Column, *, on_error: OnError = "raise"
    ) -> ZeroShotClassification | list[ZeroShotClassification] | list[ZeroShotClassification | InputFailure]:
        """Return the result of one text, or the results of several in the same order.

        Args:
            inputs: one text or a list of them, as in `bert_runtime.Model.__call__`, without pairs.
            on_error: of several texts, what happens to one that cannot be processed, see `OnError`.

        Raises:
            InputError: an input is not a text; names its index.
        """
        if isinstance(inputs, str | tuple | Mapping):
            if on_error != "raise":
                raise InputError(f"on_error={on_error!r} is for several inputs; give the input in a list")
            (result,) = self._predict(self.tokenize([inputs]))
            return result
        check_column(inputs)
        return list(self.stream(inputs, on_error=on_error))

    def stream(
        self, inputs: Iterable[SingleInput] | Column, *, on_error: OnError = "raise"
    ) -> Iterator[ZeroShotClassification | InputFailure]:
        """Yield results one by one, in order, as `bert_runtime.Model.stream` does."""
        if isinstance(inputs, str | bytes | Mapping):
            raise InputError(
                f"expected several inputs, found {type(inputs).__name__}; for one input call the classifier"
            )
        results = stream_results(inputs, on_error, self.tokenize, self._predict)
        yield from cast(Iterator[ZeroShotClassification | InputFailure], results)

    def tokenize(self, inputs: Sequence[SingleInput], first: int = 0) -> list[EncodedInput]:
        """Return texts with their tokens, each encoded alone.

        Args:
            inputs: texts as in `__call__`.
            first: the number that an error gives the first input.

        Raises:
            InputError: names an input that is a pair or cannot be encoded.
        """
        encoded = self.model.tokenize(inputs, first)
        self.check_texts(encoded, first)
        return encoded

    def check_texts(self, encoded: Sequence[EncodedInput], first: int = 0) -> None:
        """Raise `InputError` for a tokenized input that is a pair; the first input has the number `first`."""
        for index, item in enumerate(encoded, start=first):
            if item.input.text_pair is not None:
                raise InputError("expected one text, found a pair; its second text would be the hypothesis", index)

    def join(self, item: EncodedInput) -> EncodedInput:
        """Return a text that was encoded alone as N pairs, its windows: one with the hypothesis of each label.

        As in the pipeline, a text that is too long is truncated, never a hypothesis.
        """
        (encoding,) = item.windows
        text, joiner = self._joiner.text_ids(encoding), self._joiner
        pairs = []
        for hypothesis in self._hypotheses:
            room = joiner.max_text_tokens - len(hypothesis)
            truncated = len(text) > room or bool(encoding.overflowing)
            pairs.append(joiner.join(joiner.truncate(text, room), hypothesis, truncated=truncated))
        return EncodedInput(item.input, cast(tuple[Encoding, ...], tuple(pairs)))

    def decode(self, outputs: Outputs) -> ZeroShotClassification:
        """Decode the logits [labels of the model] of each pair that `join` made of a text."""
        logits, (entailment, contradiction) = np.stack(outputs.arrays), self._entailment
        if self.judges_alone:
            scores = softmax(logits[:, [contradiction, entailment]])[:, 1]
        else:
            scores = softmax(logits[:, entailment])
        best = int(scores.argmax())
        truncated = is_truncated(outputs)
        return ZeroShotClassification(
            self.labels[best], float(scores[best]), outputs.input.text, scores, logits, self.labels, truncated=truncated
        )

    def label_logits(self, logits: FloatArray) -> FloatArray:
        """Return one logit for each candidate label, whose softmax, or sigmoid if each is judged alone, is its score.

        Args:
            logits: `ZeroShotClassification.logits`, [candidate labels, labels of the model].
        """
        entailment, contradiction = (logits[:, label] for label in self._entailment)
        return entailment - contradiction if self.judges_alone else entailment

    @property
    def judges_alone(self) -> bool:
        """Whether a label's score does not depend on the other labels."""
        return self.multi_label or len(self.labels) == 1

    def _predict(self, encoded: Sequence[EncodedInput]) -> Iterator[ZeroShotClassification]:
        num_texts = max(1, _MAX_PAIRS // len(self.labels))
        for start in range(0, len(encoded), num_texts):
            pairs = [self.join(item) for item in encoded[start : start + num_texts]]
            yield from map(self.decode, self.model.encoded_outputs(pairs))

    def _tokenize_hypotheses(self, template: str) -> list[list[int]]:
        """Return the token ids of each label's hypothesis; raise `InputError` for one that leaves the text no room."""
        texts = make_hypotheses(self.labels, template)
        try:
            windows = self.model.tokenizer.encode_ids(list(map(TextInput, texts)))
        except InputError as error:
            where = "" if error.index is None else f" {error.index}"
            raise InputError(f"candidate label{where}: {error.reason}") from None
        hypotheses = [self._joiner.text_ids(encoding) for encoding, *_ in windows]
        room = self._joiner.max_text_tokens - 1
        for label, hypothesis in zip(self.labels, hypotheses, strict=True):
            if len(hypothesis) > room:
                raise InputError(
                    f"the hypothesis of label {label!r:.50} has {len(hypothesis)} tokens or more; expected at most "
                    f"{room}, so that the text has room; shorten the label or the template"
                )
        return hypotheses
