"""An evaluator without models: metric and speed are functions of the candidate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bert_export.compression.candidates import Candidate
from bert_export.compression.halving import Trial
from bert_export.compression.planning import Rung, TrainingRows
from bert_export.compression.search import Measured

__all__ = ["FakeEvaluator", "candidate"]


def candidate(num_layers: int, width: int = 64) -> Candidate:
    return Candidate(layers=tuple(range(num_layers)), intermediate_size=width)


@dataclass
class FakeEvaluator:
    """Trains in no time: more layers are better and slower."""

    drop_of: Callable[[float], float] = lambda speedup: speedup - 1
    """Loss in percent by speed-up."""
    measured_speed: Callable[[float], float] = lambda predicted: predicted
    max_speed: float = 8.0
    budget_s: float = 100.0
    failing: Sequence[Candidate] = ()
    broken: Sequence[Candidate] = ()
    """Candidates that cannot be exported."""
    log: list[tuple[str, int]] = field(default_factory=list)
    """Names of trained candidates, and their epochs."""
    levels: list[str] = field(default_factory=list)
    rows: TrainingRows = field(default_factory=lambda: TrainingRows(num_given=100))
    narrows: bool = False
    fits: Callable[[Candidate], Candidate | None] = lambda trained: trained

    @staticmethod
    def speed(of: Candidate) -> float:
        return 8.0 / len(of.layers)

    def pool(self, speedup: float) -> list[Candidate]:
        fast = [candidate(layers) for layers in range(8, 0, -1) if speedup <= 8.0 / layers <= self.max_speed]
        return fast[:3]

    def plan(self, level: str, compute: Callable[[], list[Rung]]) -> list[Rung]:
        self.levels.append(level)
        return compute()

    def plan_last(self, level: str, compute: Callable[[], Rung]) -> Rung:
        return compute()

    def row_s(self, candidates: Sequence[Candidate]) -> float:
        return 0.01

    def may_begin(self, level: str) -> bool:
        return self.budget_s > 0

    def time_left_s(self) -> float:
        return self.budget_s

    def train(self, level: str, candidate: Candidate, rung: Rung, before: Trial | None) -> Trial | None:
        if candidate in self.failing:
            return None
        self.log.append((candidate.name, rung.epochs))
        return Trial(
            candidate, 1.0 - self.drop_of(self.speed(candidate)) / 100, f"{level}/{candidate.name}/{rung.epochs}"
        )

    def measure(self, trial: Trial) -> Measured | None:
        if trial.candidate in self.broken:
            return None
        speed = self.speed(trial.candidate)
        measured = speed if trial.candidate.intermediate_size < 64 else self.measured_speed(speed)
        return Measured(trial, measured, self.drop_of(speed))

    def fit_to_speed(self, trial: Trial, speedup: float) -> Candidate | None:
        return self.fits(trial.candidate)

    def narrow(self, level: str, found: Measured, speedup: float) -> Trial | None:
        narrower = replace(found.trial.candidate, intermediate_size=32)
        return self.train(level, narrower, Rung(1, 1, 100), found.trial) if self.narrows else None
