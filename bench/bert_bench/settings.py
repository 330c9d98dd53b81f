"""Settings of a benchmark: what is measured, and how often."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

from bert_runtime.errors import InputError

__all__ = ["GRID", "Settings"]

GRID = tuple((batch, tokens) for batch in (1, 8, 32) for tokens in (16, 64, 128, 384))
"""Batch sizes × tokens of the model-only cases of a comparison."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a benchmark. Some JSON keys of reports differ from the names here, see each field's metadata.

    Raises:
        InputError: values out of range; all of them are named.
    """

    shapes: tuple[tuple[int, int], ...] = ((1, 16), (1, 64), (1, 128), (1, 384), (8, 128))
    """Batch size × tokens of the model-only cases. Those longer than the bundle's maximum are skipped with a note."""

    text_tokens: tuple[int, ...] = (14, 64, 128)
    """Lengths in tokens of the single texts that are timed end to end."""

    num_texts: int = 128
    """Number of texts of the throughput workload; a longer list is sampled."""

    rounds: int = 15
    """Rounds, in each of which every case is timed on every engine."""

    burst_ms: float = 60.0
    """Duration of an engine's burst in a round: as many calls as fill it, at least one."""

    starts: int = field(default=3, metadata={"key": "loads"})
    """Number of starts of every engine; load times are medians over them."""

    threads: int | None = None
    """Threads of every engine; `None` for the cores that this process may use."""

    max_batch_tokens: int | None = None
    """Padded tokens per batch for many texts, for every engine. `None` for bert-export's default, and for the size that
    is fastest for each compared engine."""

    long_case_ms: float = 500.0
    """Latency in ms above which, on any engine, a case is timed in every third round only, on all engines."""

    max_offline_tokens: int | None = None
    """Maximum total tokens of a given throughput workload; further texts are left out."""

    clients: tuple[int, ...] = field(default=(), metadata={"key": "callers"})
    """Numbers of concurrent clients, one measurement each."""

    clients_s: float = field(default=1.0, metadata={"key": "callers_s"})
    """Duration in seconds of each round of concurrent clients."""

    clients_rounds: int = field(default=3, metadata={"key": "callers_rounds"})
    """Rounds of each number of concurrent clients on every engine."""

    loadgen_s: float | None = None
    """Duration in seconds of each MLPerf LoadGen scenario; `None` for the default of 5 s."""

    gemm_peak_s: float = field(default=1.5, metadata={"key": "peak_s"})
    """Duration in seconds of the peak matmul measurement in each precision, which is done twice."""

    max_examples: int = field(default=500, metadata={"key": "labelled"})
    """Maximum rows of a labelled file for the task metric and the comparison of outputs."""

    seed: int = 0
    """Seed of the token ids of model-only cases and of the texts of the workloads."""

    def __post_init__(self) -> None:
        if problems := [*self._problems()]:
            raise InputError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        """Yield a message for each value out of range."""
        at_least_one = (
            ("num_texts", self.num_texts),
            ("rounds", self.rounds),
            ("starts", self.starts),
            ("threads", 1 if self.threads is None else self.threads),
            ("max_batch_tokens", 1 if self.max_batch_tokens is None else self.max_batch_tokens),
            ("max_examples", self.max_examples),
            ("clients_rounds", self.clients_rounds),
            *((f"clients {clients}", clients) for clients in self.clients),
            *((f"shape {batch}x{tokens}", min(batch, tokens)) for batch, tokens in self.shapes),
            *((f"text length {tokens}", tokens) for tokens in self.text_tokens),
        )
        positive = (
            ("burst_ms", self.burst_ms),
            ("clients_s", self.clients_s),
            ("gemm_peak_s", self.gemm_peak_s),
            ("loadgen_s", 1.0 if self.loadgen_s is None else self.loadgen_s),
        )
        yield from (f"{name} must be at least 1, found {count}" for name, count in at_least_one if count < 1)
        if not self.shapes or not self.text_tokens:
            yield "expected at least one shape and one text length"
        yield from (f"{name} must be positive, found {value}" for name, value in positive if not value > 0)

    @classmethod
    def quick(cls) -> Self:
        """Return settings with fewer rounds and starts: a third of the time, more noise."""
        return cls(rounds=5, burst_ms=40.0, starts=1, num_texts=64)

    @classmethod
    def comparison(cls, *, quick: bool = False) -> Self:
        """Return settings for comparing many engines: the whole grid, fewer rounds."""
        whole = cls(shapes=GRID, text_tokens=(14, 32, 64), max_offline_tokens=6000, clients=(2, 4, 8), rounds=9)
        if quick:
            return replace(whole, rounds=3, burst_ms=30.0, starts=1, num_texts=64, clients_s=0.5, max_examples=200)
        return whole
