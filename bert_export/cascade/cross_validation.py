"""Judge how a cascade is made by cross-validation: each row by a threshold that was chosen without it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_export.cascade.threshold import Threshold, choose_threshold
from bert_export.paired_bootstrap import paired_drop
from bert_runtime import Model
from bert_runtime.cascade.model import cascade_task, mark_output
from bert_runtime.cascade.task import CascadeTask, common_logits, confidence
from bert_runtime.errors import DataError
from bert_runtime.evaluation import build_examples, run_examples
from bert_runtime.records import Record
from bert_runtime.score_calibration import METHODS, fold_numbers
from bert_runtime.tasks import Example, Outputs, TextClassification, stack_single_window

__all__ = ["NUM_FOLDS", "JudgedRows", "split_folds"]

NUM_FOLDS = 10
"""Folds of the labelled rows. Of 20 random orders of 2,370 rows of SST-2, 19 passed a limit of 0.5 % with ten folds, 17
with two or five, and of 100 splits into a half that chooses and one that judges, 82."""

_MIN_ROWS = 60
"""Labelled rows of different texts with which a threshold is worth anything. A judgement."""


def split_folds(records: Sequence[Record], seed: int) -> NDArray[np.int64]:
    """Return the fold of each row, int64 [rows], in random order; equal texts are in the same one.

    Raises:
        DataError: there are too few different texts.
    """
    texts = [repr([record.fields.get(name) for name in ("text", "text_pair")]) for record in records]
    if (different := len(set(texts))) < _MIN_ROWS:
        raise DataError(
            f"{records[0].path}: expected at least {_MIN_ROWS} labelled rows of different texts, found {different} in "
            f"{len(records)} rows; label more"
        )
    return fold_numbers(texts, NUM_FOLDS, seed)


@dataclass(frozen=True, kw_only=True)
class JudgedRows:
    """Labelled rows with the raw outputs of both models, which choose the threshold and judge it."""

    tasks: tuple[TextClassification, TextClassification]
    """Tasks of the small model and the large one, with the calibrations that were fitted on all rows."""
    methods: Sequence[str]
    """The methods of these calibrations; unused for several labels."""
    outputs: tuple[Sequence[Outputs], Sequence[Outputs]]
    examples: Sequence[Example]
    folds: NDArray[np.int64]

    @classmethod
    def run(
        cls, models: Sequence[Model], methods: Sequence[str], records: Sequence[Record], folds: NDArray[np.int64]
    ) -> "JudgedRows":
        """Run all rows through both models.

        Args:
            models: the small model and the large one, loaded from calibrated bundles.
            methods: their methods of calibration.
            records: labelled rows.
            folds: the fold of each, see `split_folds`.
        """
        small, large = models
        assert isinstance(small.task, TextClassification), "as was checked"
        assert isinstance(large.task, TextClassification), "as was checked"
        examples = [build_examples(model.task, model.tokenizer, records) for model in models]
        outputs = run_examples(small, examples[0]), run_examples(large, examples[1])
        return cls(tasks=(small.task, large.task), methods=methods, outputs=outputs, examples=examples[1], folds=folds)

    @property
    def task(self) -> CascadeTask:
        """The task of the cascade."""
        return cascade_task(self.tasks[1])

    def choose(self, max_drop: float) -> tuple[Threshold, bool]:
        """Choose the threshold of the cascade on all rows, see `choose_threshold`."""
        small, large = self._marked(self.tasks, range(len(self.examples)))
        return choose_threshold(self.task, small, large, self.examples, max_drop)

    def judge(self, max_drop: float, seed: int) -> dict[str, Any]:
        """Compare cascades with the large model: each fold by what calibrates and chooses on the others.

        A fold for which no threshold is within the limit on the others judges nothing, unless there is no other one:
        then the large model answers.

        Returns:
            The comparison on the rows of the folds that judge, see `PairedDrop`, the small model's own metric, the
            share of the texts that it answers, the number of folds, and for how many of them no threshold was within
            the limit. The interval is one of rows: it takes the thresholds as given.
        """
        cascade, large, small = ([*self.outputs[1]] for _ in range(3))
        judging = np.ones(len(self.examples), dtype=bool)
        for fold in range(NUM_FOLDS):
            inside, outside = (np.flatnonzero(rows).tolist() for rows in (self.folds == fold, self.folds != fold))
            tasks = self._fitted(outside)
            chosen, is_allowed = choose_threshold(
                self.task, *self._marked(tasks, outside), [self.examples[row] for row in outside], max_drop
            )
            judging[inside] = is_allowed
            answers = self._marked(tasks, inside)
            sure = confidence(self.task, stack_single_window(answers[0]))
            for row, from_small, from_large, how_sure in zip(inside, *answers, sure, strict=True):
                small[row], large[row] = from_small, from_large
                cascade[row] = from_small if is_allowed and how_sure >= chosen.value else from_large
        num_refused = len(np.unique(self.folds[~judging]))
        rows = np.flatnonzero(judging).tolist() or range(len(judging))
        cascade, large, small = ([outputs[row] for row in rows] for outputs in (cascade, large, small))
        examples = [self.examples[row] for row in rows]
        drop = paired_drop(self.task, cascade, self.task, large, examples, seed)
        return {
            **asdict(drop),
            "small": self.task.score(small, examples)[drop.metric],
            "small_share": 1 - float(np.mean([output.arrays[1][0] for output in cascade])),
            "folds": NUM_FOLDS,
            "refused_folds": num_refused,
        }

    def _fitted(self, rows: Sequence[int]) -> tuple[TextClassification, TextClassification]:
        """Return the tasks with calibrations that are fitted on some rows."""
        small, large = (
            _fitted(task, [outputs[row] for row in rows], [self.examples[row] for row in rows], method)
            for task, outputs, method in zip(self.tasks, self.outputs, self.methods, strict=True)
        )
        return small, large

    def _marked(
        self, tasks: tuple[TextClassification, TextClassification], rows: Sequence[int]
    ) -> tuple[list[Outputs], list[Outputs]]:
        """Return the outputs of the small model and the large one for some rows, as the cascade decodes them."""
        small, large = (
            [mark_output(outputs[row], common_logits(task, tasks[1]), model) for row in rows]
            for model, (task, outputs) in enumerate(zip(tasks, self.outputs, strict=True))
        )
        return small, large


def _fitted(
    task: TextClassification, outputs: Sequence[Outputs], examples: Sequence[Example], method: str
) -> TextClassification:
    if task.problem_type != "single_label":
        return task
    expected = np.array([example.target for example in examples], dtype=np.int64)
    found = METHODS[method](stack_single_window(outputs), expected)
    return replace(task, logit_scales=found.scales, logit_biases=found.biases)
