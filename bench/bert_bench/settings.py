"""What to measure, and how often."""

from dataclasses import dataclass
from typing import Self

from bert_runtime.errors import InputError

__all__ = ["Settings"]


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

    max_batch_tokens: int = 1024
    """Padded tokens per run when many texts come at once; the same for every engine."""

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
                ("max_batch_tokens", self.max_batch_tokens),
                *((f"shape {batch}x{tokens}", min(batch, tokens)) for batch, tokens in self.shapes),
                *((f"text length {tokens}", tokens) for tokens in self.text_tokens),
            )
            if value < 1
        ]
        if not self.shapes or not self.text_tokens:
            problems.append("expected at least one shape and one text length")
        if not self.burst_ms > 0:
            problems.append(f"burst_ms must be positive, found {self.burst_ms}")
        if problems:
            raise InputError("; ".join(problems))

    @classmethod
    def quick(cls) -> Self:
        """Fewer rounds and starts: an answer in a third of the time, with more noise."""
        return cls(rounds=5, burst_ms=40.0, loads=1, num_texts=64)
