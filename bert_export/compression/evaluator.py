"""Train and measure candidates, and remember it all."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bert_export.compression.candidates import (
    ALL_TOKENS,
    Candidate,
    Shape,
    candidates_of_shape,
    narrowed,
    shapes_within,
    widest_fast_enough,
)
from bert_export.compression.data import SearchData, SearchFiles
from bert_export.compression.goal import CompressionSettings
from bert_export.compression.halving import Trial, trial_after
from bert_export.compression.journal import Journal
from bert_export.compression.latency_table import LatencyTable
from bert_export.compression.measuring import Reference, drop_to_json
from bert_export.compression.planning import Rung, TrainingRows, plan_narrowed_rung
from bert_export.compression.preparation import time_shapes
from bert_export.compression.row_times import RowTimes
from bert_export.compression.search import Measured
from bert_export.compression.surgery import Surgeon, cut_checkpoint_vocabulary
from bert_export.errors import ExportError
from bert_export.exporter import export
from bert_models.distillation import distill
from bert_models.distillation.hidden_states import HiddenStates
from bert_models.errors import UntrainableError
from bert_models.training.run_dir import LAST_NAME, STATE_DIR

__all__ = ["CandidateEvaluator"]

_SPEED_MARGIN = 1.03
"""A prediction must exceed the speed that is asked for by so much, since it may be wrong: of two models of a shape that
was predicted to be 2.08 times as fast, the bundles were 1.98 and 2.00 times as fast. Neurons that a wider margin leaves
out are lost for sure, and those that a narrower one has too many are cut off later."""

_FIT_MARGIN = 1.01
"""A bundle must exceed the speed by so much before the longest training, since it is measured once more afterwards (a
judgement)."""


@dataclass
class CandidateEvaluator:
    """Trains candidates by distillation from the uncompressed model, and measures their bundles."""

    folder: Path
    """The folder of the search."""
    journal: Journal
    settings: CompressionSettings
    data: SearchData
    files: SearchFiles
    """The same rows."""
    surgeon: Surgeon
    table: LatencyTable
    reference: Reference
    reserve_s: float
    """Seconds at the end that no training may take."""
    progress: Callable[[str], None]
    percents: Sequence[int] = (ALL_TOKENS,)
    """Percentages of a text's tokens that candidates keep."""
    bias: float = 1.0
    """How much faster bundles are than predicted."""
    hidden_states: HiddenStates = field(default_factory=HiddenStates)
    """The uncompressed model's, from the first training that compares them."""
    trials: list[Trial] = field(default_factory=list)
    """The last trial of every candidate that was trained."""
    timed: set[Shape] = field(default_factory=set)
    """Shapes that were timed because they may be fast enough, in turn with few others."""
    num_answered: int = 0
    """Rows to train on that the uncompressed model has answered, the first ones that there are."""
    work: dict[str, float] = field(default_factory=dict)
    """Work of each trial's last training in given rows, by its checkpoint."""

    def __post_init__(self) -> None:
        config = self.surgeon.model.config
        self.full_shape = Shape(config.num_layers, config.intermediate_size)
        self.shapes = shapes_within(self.full_shape, self.percents)
        self.times = RowTimes(self.surgeon.row_s, lambda candidate: self.predicted_speedup(candidate.shape))

    @property
    def rows(self) -> TrainingRows:
        """See `Evaluator.rows`. The INT8 bundle of the uncompressed model answers them, and for the hidden states a
        forward pass in PyTorch, about a third of a step.
        """
        forward_s = self.times.uncompressed_s / 3 if self.settings.hidden_weight else 0.0
        answer_s = self.table.predict_ms(self.full_shape) / 1e3 + forward_s
        return replace(self.data.training_rows, num_answered=self.num_answered, answer_s=answer_s)

    def predicted_speedup(self, shape: Shape) -> float:
        """Return the speed of a shape over that of the uncompressed model."""
        return self.bias * self.table.predict_ms(self.full_shape) / self.table.predict_ms(shape)

    def max_speedup(self) -> float:
        """Return the predicted speed-up of the smallest candidate."""
        return max(map(self.predicted_speedup, self.shapes)) / _SPEED_MARGIN

    def pool(self, speedup: float) -> list[Candidate]:
        """See `Evaluator.pool`: the strategies of `candidates_of_shape` in turn, each with its least loss as cut first.

        What a model loses as it is cut says little about what it learns, and no strategy is always the best: of UD-EWT,
        layers 3-4-5 had the least loss before training, and lost 1.5 % after it, where 0-2-5 lost 0.4 %; of two layers,
        0-1 had an accuracy of 0.959 after an epoch, and 0-5 of 0.936.
        """
        shapes = self._fast_enough(speedup * _SPEED_MARGIN)
        strategies = zip_longest(*(candidates_of_shape(self.surgeon.influence, shape) for shape in shapes))
        possible = [
            [candidate for candidate in candidates if candidate is not None and self.surgeon.can_cut(candidate)]
            for candidates in strategies
        ]
        ranked = [sorted(candidates, key=self._untrained_loss) for candidates in possible]
        return [candidate for turn in zip_longest(*ranked) for candidate in turn if candidate is not None]

    def _fast_enough(self, speedup: float) -> list[Shape]:
        """Return the widest shapes that are fast enough. Their latencies are measured, not only predicted.

        Of those that are not, narrower ones are measured.
        """
        while True:
            shapes = widest_fast_enough({shape: self.predicted_speedup(shape) for shape in self.shapes}, speedup)
            new = [shape for shape in shapes if shape not in self.timed]
            if not new:
                return shapes
            self.timed.update(new)
            found = self.journal.remember(f"latencies of {new}", partial(self._time_shapes, new))
            self.table = self.table.extended(LatencyTable.from_json(found).measured_ms, self.full_shape)

    def _time_shapes(self, shapes: Sequence[Shape]) -> list[dict[str, Any]]:
        return LatencyTable(time_shapes(self.surgeon.model, self.reference, self.data, shapes, self.progress)).to_json()

    def _untrained_loss(self, candidate: Candidate) -> float:
        return float(self.journal.remember(f"loss of {candidate.name} as cut", lambda: self.surgeon.loss(candidate)))

    def plan(self, level: str, compute: Callable[[], list[Rung]]) -> list[Rung]:
        """See `Evaluator.plan`."""
        rows = self.journal.remember(f"plan {level}", lambda: [asdict(rung) for rung in compute()])
        rungs = [Rung(**row) for row in rows]
        steps = ", then ".join(f"{rung.num_candidates} × {rung.epochs} epochs" for rung in rungs)
        self.progress(f"candidates that are {level} as fast: training {steps}{self._time_left()}")
        return rungs

    def plan_last(self, level: str, compute: Callable[[], Rung]) -> Rung:
        """See `Evaluator.plan_last`."""
        return Rung(**self.journal.remember(f"last rung {level}", lambda: asdict(compute())))

    def row_s(self, candidates: Sequence[Candidate]) -> float:
        """See `Evaluator.row_s`."""
        return self.times.mean_s(candidates)

    def may_begin(self, level: str) -> bool:
        """See `Evaluator.may_begin`."""
        return self.journal.knows(f"plan {level}") or self.time_left_s() > 0

    def time_left_s(self) -> float:
        """See `Evaluator.time_left_s`."""
        return self.settings.budget_s - self.journal.elapsed_s - self.reserve_s

    def train(self, level: str, candidate: Candidate, rung: Rung, before: Trial | None) -> Trial | None:
        """See `Evaluator.train`."""
        start = "cut" if before is None else before.checkpoint
        key = f"train {candidate.name} at {level} for {rung.epochs} epochs of {rung.num_rows} rows from {start}"
        is_new = not self.journal.knows(key)
        found = self.journal.remember(key, lambda: self._train(level, candidate, rung, before))
        if is_new and "superseded" in found:  # only now: a search that is killed before may need it again
            shutil.rmtree(self.folder / found["superseded"], ignore_errors=True)
        if "failed" in found:
            self.progress(f"warning: {candidate.name} failed: {found['failed']}")
            return None
        work = rung.epochs * self.rows.work(rung.num_rows)
        if is_new:
            self.progress(f"{candidate.name}: {found['metric']:.4f}{self._time_left()}")
        if found["seconds"] is not None:
            self.times.add(candidate, found["seconds"], work)
        self.num_answered = max(self.num_answered, rung.num_rows)
        trial = trial_after(before, candidate, found["metric"], found["checkpoint"], rung.num_rows)
        replaced = None if before is None or before.candidate != candidate else before
        self.trials = [known for known in self.trials if known != replaced] + [trial]
        self.work[trial.checkpoint] = work
        return trial

    def _train(self, level: str, candidate: Candidate, rung: Rung, before: Trial | None) -> dict[str, Any]:
        """Train a candidate; return its metric, its checkpoint and the one not needed any more, or why that failed."""
        base = self.folder / "checkpoints" / f"{candidate.name}-at-{level}"
        goes_on = before is not None and before.candidate == candidate
        start = self.folder / before.checkpoint if before and goes_on else base / ("narrowed" if before else "cut")
        output = base / f"{start.name}-then-{rung.epochs}-of-{rung.num_rows}"  # not where it starts, nor of other rows
        if not goes_on and not (start / "config.json").is_file():
            self.surgeon.save(candidate, start, None if before is None else self.folder / before.checkpoint)
        self.progress(f"training {candidate.name} for {rung.epochs} epochs of {rung.num_rows} rows")
        resume, once_s = (output / STATE_DIR / LAST_NAME).is_file(), self.hidden_states.once_s
        try:
            report = self._distill(str(start), output, rung, resume=resume)
        except UntrainableError as error:
            return {"failed": str(error)}
        metric = report["best"][report["metric"]]
        # The report of a resumed training has the time of its last process.
        seconds = None if resume else report["seconds"] - (self.hidden_states.once_s - once_s)
        old, new = (str(path.relative_to(self.folder)) for path in (start, output))
        found = {"metric": metric, "checkpoint": new, "superseded": old, "seconds": seconds}
        if before is not None and goes_on and metric < before.metric:  # more epochs are not always better
            found |= {"metric": before.metric, "checkpoint": old, "superseded": new, "longer": metric}
        return found

    def _distill(self, student: str, output: Path, rung: Rung, *, resume: bool) -> dict[str, Any]:
        """Train a checkpoint. The hidden states of the given rows serve both files: they are the first in either."""
        settings = self.settings
        train = self.data.write_first(self.folder, rung.num_rows)
        labelled = not self.data.unlabelled and rung.num_rows <= len(self.data.given)
        return distill(
            self.surgeon.source.name, student, train, self.files.dev, output, settings.training(rung.epochs),
            settings.losses(labelled=labelled),
            resume=resume, force=not resume, teacher_outputs=self.folder / f"{train.stem}-teacher-outputs.pt",
            compute_outputs=self.reference.answer, hidden_states=self.hidden_states,
        )  # fmt: skip

    def measure(self, trial: Trial) -> Measured | None:
        """See `Evaluator.measure`."""
        is_new = not self.journal.knows(f"measure {trial.checkpoint}")
        found = self.measurements(trial)
        if "failed" in found:
            if is_new:
                self.progress(f"warning: {trial.candidate.name} cannot be exported: {found['failed']}")
            return None
        if trial.candidate.shape in self.table.measured_ms:  # not the error of a fit
            self.bias *= found["time"]["speedup"] / self.predicted_speedup(trial.candidate.shape)
        return Measured(trial, found["time"]["speedup"], found["search"]["drop_percent"])

    def fit_to_speed(self, trial: Trial, speedup: float) -> Candidate | None:
        """See `Evaluator.fit_to_speed`."""
        found = self.measure(trial)
        if found is None:
            return None
        if found.speedup >= speedup * _FIT_MARGIN:
            return trial.candidate
        wanted = speedup * _FIT_MARGIN / found.speedup
        return narrowed(trial.candidate, wanted, self.table.fitted_ms)

    def narrow(self, level: str, found: Measured, speedup: float) -> Trial | None:
        """See `Evaluator.narrow`."""
        candidate = found.trial.candidate
        narrower = narrowed(candidate, speedup / found.speedup, self.table.fitted_ms)

        def plan() -> Any:
            left_s, budget_s = self.time_left_s(), self.settings.budget_s
            rung = plan_narrowed_rung(self.row_s([candidate]), left_s, budget_s, self.rows)
            return rung and asdict(rung)

        rung = narrower and self.journal.remember(f"narrowing {found.trial.checkpoint}", plan)
        return self.train(level, narrower, Rung(**rung), found.trial) if narrower and rung else None

    def measure_best(self) -> list[Measured]:
        """Return the measurements so far; if there are none, measure the best trial of the longest training.

        If it cannot be exported, the next one is measured.
        """
        known = [trial for trial in self.trials if self.journal.knows(f"measure {trial.checkpoint}")]
        longest = sorted(self.trials, key=lambda trial: (self.work[trial.checkpoint], trial.metric), reverse=True)
        return self._exportable(known) or next(filter(None, (self._exportable([trial]) for trial in longest)), [])

    def _exportable(self, trials: Sequence[Trial]) -> list[Measured]:
        """Return the measurements of trials, without those that cannot be exported."""
        measured = [self.measure(trial) for trial in trials]
        return [found for found in measured if found is not None]

    def measurements(self, trial: Trial) -> dict[str, Any]:
        """Return what `measure` has found."""
        return dict(self.journal.remember(f"measure {trial.checkpoint}", lambda: self._measure(trial)))

    def _measure(self, trial: Trial) -> dict[str, Any]:
        checkpoint, vocabulary = self.folder / trial.checkpoint, None
        if self.settings.vocabulary == "cut":
            cut = checkpoint.with_name(f"{checkpoint.name}-cut-vocabulary")
            vocabulary = cut_checkpoint_vocabulary(checkpoint, cut, self.data.given)
            checkpoint = cut
        bundle = self.folder / "bundles" / "-".join(checkpoint.relative_to(self.folder).parts[1:])
        self.progress(f"exporting {trial.candidate.name} and measuring it{self._time_left()}")
        try:
            export(checkpoint, bundle, calibrate=self.files.given, max_tokens=self.settings.max_tokens, force=True)
        except ExportError as error:
            return {"failed": str(error)}
        drop = self.reference.compare(bundle, self.data.search)
        return {
            "checkpoint": str(checkpoint.relative_to(self.folder)),
            "bundle": str(bundle.relative_to(self.folder)),
            "vocabulary": vocabulary,
            "time": self.reference.time(bundle),
            "search": drop_to_json(drop),
        }

    def _time_left(self) -> str:
        minutes, seconds = divmod(int(max(self.settings.budget_s - self.journal.elapsed_s, 0)), 60)
        return f" ({minutes}:{seconds:02} of the budget left)"
