"""A loaded cascade: texts in, results of the small model or the large one out."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from tokenizers import Encoding

from bert_runtime.batching.streaming import EncodedInput
from bert_runtime.cascade.manifest import CascadeManifest
from bert_runtime.cascade.task import MODELS, CascadeTask, common_logits, confidence
from bert_runtime.errors import InputError
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Outputs, TextClassification, stack_single_window
from bert_runtime.tokenization import Batch

__all__ = ["Cascade", "cascade_task", "mark_output"]

_MARKS = tuple(np.array([index], dtype=np.float32) for index in range(len(MODELS)))
"""The second array of each model's outputs."""


def cascade_task(large: TextClassification) -> CascadeTask:
    """Return the task of a cascade with this large model; the calibration of its logits is in `common_logits`."""
    plain = replace(large, logit_scales=(), logit_biases=())
    return CascadeTask(
        labels=plain.labels, problem_type=plain.problem_type, threshold=plain.threshold, thresholds=plain.thresholds
    )


def mark_output(output: Outputs, calibrate: Callable[[FloatArray], FloatArray], model: int) -> Outputs:
    """Return a raw output of one of the models as `CascadeTask` decodes it.

    Args:
        output: the model's output.
        calibrate: its `common_logits`.
        model: its index in `MODELS`.
    """
    return output._replace(arrays=(calibrate(output.arrays[0]), _MARKS[model]))


class Cascade(Model):
    """Two loaded models, of which the large one reads what the small one is not sure of.

    Called like any `Model`, also from many threads; results say which model answered. Made by `bert_runtime.load`.

    Args:
        small: answers where its confidence is at least the threshold.
        large: answers the other texts.
        cascade: the manifest with the threshold.
    """

    def __init__(self, small: Model, large: Model, cascade: CascadeManifest) -> None:
        small_task, large_task = small.task, large.task
        assert isinstance(small_task, TextClassification), "as the manifest was checked"
        assert isinstance(large_task, TextClassification), "as the manifest was checked"
        self.cascade_task = cascade_task(large_task)
        """The task, as `task`."""
        super().__init__(
            self.cascade_task, small.tokenizer, small.session, small.parallel_sessions,
            max_batch_tokens=small.max_batch_tokens,
        )  # fmt: skip
        self.small = small
        """The small model, as it is loaded alone."""
        self.large = large
        """The large model, as it is loaded alone."""
        self.cascade = cascade
        """The cascade's manifest."""
        self._small_logits = common_logits(small_task, large_task)
        self._large_logits = common_logits(large_task, large_task)
        self._same_tokens = _reads_same_tokens(small, large)

    def __repr__(self) -> str:
        return f"Cascade({self.small!r}, {self.large!r}, threshold={self.cascade.threshold:.4f})"

    def encoded_outputs(self, encoded: Sequence[EncodedInput]) -> list[Outputs]:
        """Return the logits of the model that answers each input, and its number in `MODELS`, in the same order."""
        if not encoded:
            return []
        found, unsure = self.judge_small(self.small.encoded_outputs(encoded))
        if unsure:
            rest = self.encode_for_large([encoded[index] for index in unsure])
            for index, output in zip(unsure, self.mark_large(self.large.encoded_outputs(rest)), strict=True):
                found[index] = output
        return found

    def judge_small(self, outputs: Sequence[Outputs]) -> tuple[list[Outputs], list[int]]:
        """Return the small model's outputs as `CascadeTask` decodes them, and which inputs the large one must read.

        Args:
            outputs: raw outputs of the small model, at least one.
        """
        found = [mark_output(output, self._small_logits, 0) for output in outputs]
        if len(found) == 1:  # what a single text waits for
            is_sure = float(confidence(self.cascade_task, found[0].arrays[0])) >= self.cascade.threshold
            return found, [] if is_sure else [0]
        sure = confidence(self.cascade_task, stack_single_window(found))
        return found, np.flatnonzero(~(sure >= self.cascade.threshold)).tolist()  # NaN is not sure

    def encode_for_large(self, encoded: Sequence[EncodedInput]) -> Sequence[EncodedInput]:
        """Return tokenized inputs with the large model's tokens; its tokenizer runs only where it is another one."""
        return encoded if self._same_tokens else self.large.tokenize([item.input for item in encoded])

    def mark_large(self, outputs: Sequence[Outputs]) -> list[Outputs]:
        """Return raw outputs of the large model as `CascadeTask` decodes them."""
        return [mark_output(output, self._large_logits, 1) for output in outputs]

    def run(self, batch: Batch) -> FloatArray:
        """Refuse: the models of a cascade may read other token ids, and their outputs must say whose they are."""
        raise InputError("a cascade reads texts; for token ids load its folder small or large")

    def run_encodings(self, encodings: Sequence[Encoding]) -> list[FloatArray]:
        """Refuse, see `run`."""
        raise InputError("a cascade reads texts; for tokens load its folder small or large")


def _reads_same_tokens(small: Model, large: Model) -> bool:
    """Return whether two models have one tokenizer and one maximum length."""
    if small.manifest is None or large.manifest is None:
        return False
    first, second = ((model.manifest.tokenizer.sha256, model.manifest.max_tokens) for model in (small, large))  # type: ignore[union-attr] # checked above
    return first == second
