"""Seconds of an epoch: measured where a candidate was trained, estimated from its predicted speed elsewhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from bert_export.compression.candidates import Candidate

__all__ = ["EpochTimes"]

_MIN_S = 0.1
"""Least seconds of a training: nothing is divided by zero where toy models train in no time."""


@dataclass
class EpochTimes:
    """The times of epochs on all rows."""

    full_s: float
    """Seconds that an epoch of the uncompressed model would take, about."""
    predicted_speedup: Callable[[Candidate], float]
    """Returns the speed of a candidate over that of the uncompressed model."""
    pace: float = 1.0
    """How much longer training takes than estimated, by the last one."""
    known_s: dict[Candidate, float] = field(default_factory=dict)
    """Seconds that an epoch of each candidate's last training took."""

    def add(self, candidate: Candidate, seconds: float, num_epochs: float) -> None:
        """Learn from a training; `num_epochs` is in epochs on all rows."""
        self.pace = max(seconds, _MIN_S) / max(self._unpaced_s(candidate) * num_epochs, _MIN_S)
        self.known_s[candidate] = max(seconds, _MIN_S) / num_epochs

    def mean_s(self, candidates: Sequence[Candidate]) -> float:
        """Return the mean seconds that an epoch of the candidates takes."""
        return fmean(self.known_s.get(item) or self.pace * self._unpaced_s(item) for item in candidates)

    def _unpaced_s(self, candidate: Candidate) -> float:
        return self.full_s / self.predicted_speedup(candidate)
