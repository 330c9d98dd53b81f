"""What to measure, and how often."""

from dataclasses import dataclass, replace
from typing import Self

from bert_runtime.errors import InputError

__all__ = ["GRID", "Settings"]

GRID = tuple((batch, tokens) for batch in (1, 8, 32) for tokens in (16, 64, 128, 384))
"""Batch × tokens of the comparison's model-only cases."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One benchmark run: the shapes, the lengths, the patience. Raises `InputError` for values that make no sense."""

    shapes: tuple[tuple[int, int], ...] = ((1, 16), (1, 64), (1, 128), (1, 384), (8, 128))
    """Batch × tokens of the model-only cases. Those longer than the bundle reads are skipped, and said to be."""

    text_tokens: tuple[int, ...] = (14, 64, 128)
    """Lengths in tokens of the single texts that are timed end to end."""

    num_texts: int = 128
    """Texts of the throughput workload. A longer list that is given is sampled down to it."""

    rounds: int = 15
    """How often every case is measured on every engine."""

    burst_ms: float = 60.0
    """How long an engine is timed in a round: as many calls as fill this, at least one."""

    loads: int = 3
    """How often every engine is started for its load time, which is the median."""

    threads: int | None = None
    """Threads of every engine; `None` means the cores that this process may use."""

    max_batch_tokens: int | None = None
    """Padded tokens per run when many texts come at once, the same for every engine. `None` leaves ours as it opens by
    itself, and gives each peer the size that is fastest for it."""

    long_case_ms: float = 500.0
    """A case that takes some engine longer than this is measured in every third round only, on every engine."""

    max_offline_tokens: int | None = None
    """Tokens of a given throughput workload at most; texts beyond are left out."""

    callers: tuple[int, ...] = ()
    """How many callers ask at the same time, one measurement each."""

    callers_s: float = 1.0
    """How long callers ask in each of their rounds, in seconds."""

    callers_rounds: int = 3
    """How often each number of callers is measured on every engine."""

    loadgen_s: float | None = None
    """How long MLPerf LoadGen drives each scenario, in seconds; `None` for not at all."""

    peak_s: float = 1.5
    """How long the machine's largest matrix product is timed in each precision, twice in a run, in seconds."""

    labelled: int = 500
    """Rows of a labelled file that outputs and the task metric are compared on, at most."""

    seed: int = 0
    """Decides the token ids of the model-only cases and the texts of the workloads."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1, found {value}"
            for name, value in (
                ("num_texts", self.num_texts),
                ("rounds", self.rounds),
                ("loads", self.loads),
                ("threads", 1 if self.threads is None else self.threads),
                ("max_batch_tokens", 1 if self.max_batch_tokens is None else self.max_batch_tokens),
                ("labelled", self.labelled),
                ("callers_rounds", self.callers_rounds),
                *((f"callers {callers}", callers) for callers in self.callers),
                *((f"shape {batch}x{tokens}", min(batch, tokens)) for batch, tokens in self.shapes),
                *((f"text length {tokens}", tokens) for tokens in self.text_tokens),
            )
            if value < 1
        ]
        if not self.shapes or not self.text_tokens:
            problems.append("expected at least one shape and one text length")
        problems += [
            f"{name} must be positive, found {value}"
            for name, value in (
                ("burst_ms", self.burst_ms),
                ("callers_s", self.callers_s),
                ("peak_s", self.peak_s),
                ("loadgen_s", 1.0 if self.loadgen_s is None else self.loadgen_s),
            )
            if not value > 0
        ]
        if problems:
            raise InputError("; ".join(problems))

    @classmethod
    def quick(cls) -> Self:
        """Fewer rounds and starts: an answer in a third of the time, with more noise."""
        return cls(rounds=5, burst_ms=40.0, loads=1, num_texts=64)

    @classmethod
    def comparison(cls, *, quick: bool = False) -> Self:
        """For many engines side by side: the whole grid, fewer rounds."""
        whole = cls(shapes=GRID, text_tokens=(14, 32, 64), max_offline_tokens=6000, callers=(2, 4, 8), rounds=9)
        if quick:
            return replace(whole, rounds=3, burst_ms=30.0, loads=1, num_texts=64, callers_s=0.5, labelled=200)
        return whole
