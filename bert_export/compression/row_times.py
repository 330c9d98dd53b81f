"""Seconds that training takes for a row: measured where a candidate was trained, else estimated from its speed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from bert_export.compression.candidates import Candidate

__all__ = ["RowTimes"]

_MIN_S = 0.1
"""Least seconds of a training: nothing is divided by zero where toy models train in no time."""


@dataclass
class RowTimes:
    """The times of given rows in an epoch."""

    estimated_s: float
    """Seconds that the uncompressed model would take, about."""
    predicted_speedup: Callable[[Candidate], float]
    """Returns the speed of a candidate over that of the uncompressed model."""
    pace: float = 1.0
    """How much longer training takes than estimated, by the last one."""
    known_s: dict[Candidate, float] = field(default_factory=dict)
    """Seconds of each candidate's last training."""

    @property
    def uncompressed_s(self) -> float:
        """Seconds of the uncompressed model, at the pace of the last training."""
        return self.pace * self.estimated_s

    def add(self, candidate: Candidate, seconds: float, work: float) -> None:
        """Learn from a training; its work is in given rows, those of all epochs together."""
        self.pace = max(seconds, _MIN_S) / max(self._unpaced_s(candidate) * work, _MIN_S)
        self.known_s[candidate] = max(seconds, _MIN_S) / work

    def mean_s(self, candidates: Sequence[Candidate]) -> float:
        """Return the mean seconds that the candidates take."""
        return fmean(self.known_s.get(item) or self.pace * self._unpaced_s(item) for item in candidates)

    def _unpaced_s(self, candidate: Candidate) -> float:
        return self.estimated_s / self.predicted_speedup(candidate)
