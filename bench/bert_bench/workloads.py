"""Workloads: token ids of fixed shapes, single texts of fixed lengths, and many texts of mixed lengths."""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

import numpy as np

from bert_bench.settings import Settings
from bert_runtime.errors import InputError
from bert_runtime.records import read_records
from bert_runtime.tasks import Task, TextInput
from bert_runtime.tokenization import Batch, TextTokenizer, pad

__all__ = ["CORPUS", "SYNTHETIC", "Case", "Stage", "Workload", "build_workload", "mixed_lengths"]

CORPUS = Path(__file__).parent / "data" / "support_intents" / "train.jsonl"
"""Source of the words of the synthetic texts."""

MEAN_TOKENS, MAX_TOKENS = 24, 124
"""Mean and maximum length of the synthetic throughput workload, special tokens included: short support messages."""

_SIGMA = 0.7
"""Standard deviation of the logarithm of the lengths: the median is 19 tokens, and 2 % of the texts exceed 80."""

Stage = Literal["model", "tokenization", "end_to_end", "concurrent"]
"""A stage that is timed: token ids to raw outputs; text to token ids; text to decoded prediction, by one client or by
several concurrent ones."""

SYNTHETIC = "mixed"
"""Name of the synthetic throughput workload."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case to time. A single text is passed as a text, several texts as one list."""

    name: str
    stage: Stage
    texts: tuple[TextInput, ...] = ()
    """Inputs of the case, texts or pairs as the task requires."""
    batch: Batch | None = None
    """Token ids [B, S] of the stage `model`."""

    tokens: tuple[int, ...]
    """Length of each sequence after tokenization, special tokens included."""

    bundle_only: bool = False
    """Whether only the bundle's engines are timed, as on the stages inside an end-to-end call."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """All cases of a run."""

    shapes: tuple[Case, ...]
    """Model only: token ids in, raw outputs out."""
    singles: tuple[Case, ...]
    """End to end: one text in, its decoded prediction out."""
    stages: tuple[Case, ...]
    """Stages of the first of `singles`: `tokenization`, then `model`."""

    offline: tuple[Case, ...]
    """Throughput: many texts of mixed lengths, passed in one call."""
    notes: tuple[str, ...] = ()
    """Requested cases that were left out, with the reason."""

    @property
    def cases(self) -> tuple[Case, ...]:
        """All cases, in the order of a round."""
        return (*self.shapes, *self.singles, *self.stages, *self.offline)


def build_workload(
    task: Task, tokenizer: TextTokenizer, texts: Mapping[str, Sequence[str]], settings: Settings
) -> Workload:
    """Build the cases for a bundle.

    Args:
        task: the bundle's task. `Task.sample_inputs` turns texts into its inputs, such as pairs.
        tokenizer: the bundle's tokenizer.
        texts: texts of the throughput workloads by name; empty for the synthetic workload.
        settings: shapes, lengths and seed.

    Raises:
        InputError: a throughput workload has no texts.
    """
    notes: list[str] = []
    corpus = _Corpus(tokenizer, settings.seed)
    shapes = _shapes(tokenizer.max_tokens, settings, notes)
    singles = tuple(
        _texts_case(f"text{n}", task.sample_inputs([corpus.text(n)]), task, tokenizer)
        for n in _lengths(tokenizer.max_tokens, settings, notes)
    )
    chosen = {name: _sample(name, given, task, tokenizer, settings, notes) for name, given in texts.items()}
    if not chosen:
        lengths = mixed_lengths(settings.num_texts, settings.seed, tokenizer.max_tokens)
        chosen = {SYNTHETIC: [corpus.text(n) for n in lengths]}
    workload = Workload(
        shapes=tuple(_shape_case(task, batch, tokens, tokenizer, settings.seed) for batch, tokens in shapes),
        singles=singles,
        stages=tuple(_stages(singles[0], task, tokenizer)),
        offline=tuple(
            _texts_case(name, task.sample_inputs(sample), task, tokenizer) for name, sample in chosen.items()
        ),
        notes=tuple(notes),
    )
    cases = (*workload.shapes, *workload.singles, *workload.stages, *workload.offline)
    if taken := [name for name, count in Counter(case.name for case in cases).items() if count > 1]:
        raise InputError(f"expected texts with another name than that of another case, found {taken[0]}; rename them")
    return workload


def mixed_lengths(count: int, seed: int, max_tokens: int = MAX_TOKENS) -> list[int]:
    """Return log-normal lengths in tokens: mean about `MEAN_TOKENS`, from 4 to `max_tokens` or `MAX_TOKENS`."""
    generator = np.random.default_rng(seed)
    lengths = generator.lognormal(math.log(MEAN_TOKENS) - _SIGMA**2 / 2, _SIGMA, count)
    clipped: list[int] = np.clip(np.rint(lengths), 4, min(MAX_TOKENS, max_tokens)).astype(int).tolist()
    return clipped


class _Corpus:
    """Generates texts of a given length: consecutive messages from a random one on, cut after a word."""

    def __init__(self, tokenizer: TextTokenizer, seed: int) -> None:
        self._messages = [record.text().split() for record in read_records(CORPUS)]
        self._random = random.Random(seed)
        words = sorted({word for message in self._messages for word in message})
        self._special = tokenizer.num_special_tokens
        self._tokens = {word: max(1, len(tokenizer.token_ids(word))) for word in words}

    def text(self, tokens: int) -> str:
        """Return a text of at most `tokens` tokens, special tokens included, and as long as whole words allow."""
        chosen: list[str] = []
        remaining = tokens - self._special
        for word in self._words_from(self._random.randrange(len(self._messages))):
            remaining -= self._tokens[word]
            if chosen and remaining < 0:
                break
            chosen.append(word)
        return " ".join(chosen)

    def _words_from(self, start: int) -> Iterator[str]:
        """Yield words without end, from a message on."""
        while True:
            yield from self._messages[start % len(self._messages)]
            start += 1


def _shapes(max_tokens: int, settings: Settings, notes: list[str]) -> tuple[tuple[int, int], ...]:
    """Return the shapes that fit the bundle's maximum length, at least one; note the others."""
    fitting = tuple(shape for shape in settings.shapes if shape[1] <= max_tokens)
    if len(fitting) < len(settings.shapes):
        skipped = ", ".join(f"{batch}x{tokens}" for batch, tokens in settings.shapes if tokens > max_tokens)
        notes.append(f"Skipped {skipped}: longer than the bundle's maximum of {max_tokens} tokens.")
    return fitting or ((1, max_tokens),)


def _lengths(max_tokens: int, settings: Settings, notes: list[str]) -> tuple[int, ...]:
    """Return the lengths of single texts that fit the bundle, shortest first, at least one; note the others."""
    fitting = tuple(sorted(n for n in settings.text_tokens if n <= max_tokens))
    if len(fitting) < len(settings.text_tokens):
        skipped = ", ".join(str(n) for n in settings.text_tokens if n > max_tokens)
        notes.append(f"Skipped texts of {skipped} tokens: longer than the bundle's maximum of {max_tokens} tokens.")
    return fitting or (max_tokens,)


def _sample(
    name: str, texts: Sequence[str], task: Task, tokenizer: TextTokenizer, settings: Settings, notes: list[str]
) -> list[str]:
    """Return at most as many texts as the settings allow, sampled at random, in order; note the sampling."""
    if not texts:
        raise InputError("expected at least one text for the throughput workload, found none")
    chosen = random.Random(settings.seed).sample(range(len(texts)), min(len(texts), settings.num_texts))
    if settings.max_offline_tokens is not None:
        inputs = task.sample_inputs([texts[i] for i in chosen])
        totals = accumulate(sum(map(len, windows)) for windows in tokenizer.encode(inputs))
        fitting = sum(total <= settings.max_offline_tokens for total in totals)
        chosen = chosen[: max(1, fitting)]
    if len(chosen) < len(texts):
        notes.append(
            f"Throughput ({name}) was measured on {len(chosen)} of the {len(texts)} texts given, sampled at random."
        )
    return [texts[i] for i in sorted(chosen)]


def _shape_case(task: Task, batch: int, tokens: int, tokenizer: TextTokenizer, seed: int) -> Case:
    """Return a model-only case of random token ids without padding."""
    ids = np.random.default_rng((seed, batch, tokens)).integers(0, tokenizer.vocab_size, (batch, tokens))
    arrays = Batch(task.valid_probe_ids(ids), np.ones_like(ids), np.zeros_like(ids))
    return Case(name=f"{batch}x{tokens}", stage="model", batch=arrays, tokens=(tokens,) * batch)


def _texts_case(name: str, texts: Sequence[TextInput], task: Task, tokenizer: TextTokenizer) -> Case:
    """Return an end-to-end case."""
    lengths = tuple(sum(map(len, windows)) for windows in tokenizer.encode(task.prefixed(texts)))
    return Case(name=name, stage="end_to_end", texts=tuple(texts), tokens=lengths)


def _stages(single: Case, task: Task, tokenizer: TextTokenizer) -> Iterator[Case]:
    """Yield the stages inside an end-to-end call on one text."""
    name, texts, tokens = single.name, single.texts, single.tokens
    yield Case(name=f"{name}.tokenization", stage="tokenization", texts=texts, tokens=tokens, bundle_only=True)
    batch = pad(tokenizer.encode(task.prefixed(texts[:1]))[0], tokenizer.pad_token_id)
    yield Case(name=f"{name}.model", stage="model", batch=batch, tokens=tokens, bundle_only=True)
