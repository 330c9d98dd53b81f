"""Measuring how a bundle runs fastest on this machine."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_runtime.batching import parallel_batches
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.cpu.native_kernels import kernel_names
from bert_runtime.cpu.parallel_sessions import ParallelSessions
from bert_runtime.cpu.session import Session
from bert_runtime.errors import InputError
from bert_runtime.loading import bundle_tokenizer, can_run, check_asset, choose_variant, open_session
from bert_runtime.machine import available_cores
from bert_runtime.plan import Plan, Tuning, check_writable, write_tuning
from bert_runtime.tasks import Task
from bert_runtime.timing import interleaved_medians
from bert_runtime.tokenization import Batch, as_text_input

__all__ = ["tune"]

_LENGTHS = (16, 128)
"""Tokens of one input that are timed: a chat message and a paragraph."""

_BATCH_TOKENS = (128, 256, 512, 1024, 2048)

_MANY = 512
"""Sequences that come at once, at most."""

_LEAST = 16
"""Of them, at least: two runs need something to share."""

_PASS_SECONDS = 0.5
"""What one pass over many sequences may take: there are dozens of passes."""


class _One(NamedTuple):
    """A way to run one input."""

    precision: str
    threads: int
    kernels: bool

    def __str__(self) -> str:
        return f"{self.precision}, {self.threads} threads{'' if self.kernels else ', without kernels of our own'}"


class _Way(NamedTuple):
    """A way to run many sequences."""

    runs: int
    """Side by side, of one thread each; 1 for one after the other on all threads."""
    tokens: int
    """Of one run, at most."""

    def __str__(self) -> str:
        runs = f"{self.runs} runs side by side" if self.runs > 1 else "one run after the other"
        return f"{runs}, {self.tokens} tokens"


def tune(
    bundle: str | Path,
    *,
    inputs: Iterable[Any] | None = None,
    rounds: int = 5,
    progress: Callable[[str], None] = lambda stage: None,
) -> Tuning:
    """Measures variant, kernels, threads, runs side by side and batch size here, and keeps the fastest in the bundle.

    INT8 competes where the export found it faithful enough, also where it was slower on the exporting machine. What is
    measured holds for the cores that are granted now.

    Args:
        bundle: the directory; `tuning.json` is written into it, which `load` reads.
        inputs: inputs like those that will come, of which only the lengths matter. By default, full windows for tasks
            that cut long texts into them, and for others lengths that vary as those of short texts do: log-normal,
            22 tokens in the middle, cut off at 128.
        rounds: how many times everything is timed, in turns; medians count.
        progress: called with a line at the start of each stage.

    Raises:
        BundleError: not a bundle, damaged, or it cannot be written to.
        InputError: an input that the bundle's task does not take, or no input.
    """
    path = Path(bundle)
    manifest = Manifest.read(path)
    default = choose_variant(manifest, "auto").precision
    variants = [each for each in manifest.variants_for("cpu") if can_run(each)]
    precisions = [each.precision for each in variants if each.faithful or each.precision in (default, "fp32")]
    for asset in (manifest.tokenizer, *(asset for name in precisions for asset in manifest.variant(name).assets)):
        check_asset(path, asset)
    check_writable(path)
    cores = available_cores()
    lengths = _usual_lengths(manifest) if inputs is None else _lengths(path, manifest, inputs)
    progress(f"timing one input in {' and '.join(precisions)}")
    tried = [_One(name, cores, True) for name in precisions]
    here = set(kernel_names())
    tried += [_One(name, cores, False) for name in precisions if here & set(manifest.variant(name).functions)]
    one = _one_input_ms(path, manifest, tried, rounds)
    fastest = _fastest(one)
    counts = sorted({1, max(1, cores // 4), max(1, cores // 2), cores})
    if len(counts) > 1:
        progress(f"timing one input on {', '.join(map(str, counts))} threads")
        one |= _one_input_ms(path, manifest, [fastest._replace(threads=count) for count in counts], rounds)
    progress("timing many inputs")
    many, timed = _sequences_per_second(path, manifest, fastest, lengths, rounds)
    chosen = max(many, key=lambda way: many[way])
    threads = _fastest({way: ms for way, ms in one.items() if way._replace(threads=cores) == fastest}).threads
    return write_tuning(
        path,
        Plan(
            precision=fastest.precision,
            kernels=fastest.kernels,
            threads=cores if chosen.runs == 1 else threads,  # one run after the other are runs that are alone
            inter_threads=chosen.runs,
            max_batch_tokens=chosen.tokens,
        ),
        {
            "one_input_ms": {str(way): ms for way, ms in one.items()},
            "sequences": {"number": len(timed), "mean_tokens": round(float(np.mean(timed)), 1), "most": max(timed)},
            "sequences_per_second": {str(way): round(value, 1) for way, value in many.items()},
        },
    )


def _usual_lengths(manifest: Manifest) -> list[int]:
    """Tokens of sequences as the task usually has them, the same every time."""
    if manifest.task.windows is not None:
        return [manifest.max_tokens] * _MANY
    drawn = np.random.default_rng(0).lognormal(math.log(22), 0.6, _MANY)
    return [int(each) for each in np.clip(drawn, 3, min(128, manifest.max_tokens))]


def _lengths(bundle: Path, manifest: Manifest, inputs: Iterable[Any]) -> list[int]:
    """Tokens of the windows of those inputs, of evenly many of them where they are more than are timed."""
    read = [as_text_input(each) for each in inputs]
    if not read:
        raise InputError("expected inputs to tune with, found none")
    tokenizer = bundle_tokenizer(bundle, manifest)
    chosen = range(0, len(read), -(-len(read) // _MANY))
    return [len(window) for i in chosen for windows in tokenizer.encode([read[i]], i) for window in windows]


def _one_input_ms(bundle: Path, manifest: Manifest, tried: Sequence[_One], rounds: int) -> dict[_One, dict[str, float]]:
    """Milliseconds of one input by the way to run it, and by shape, such as `1x16`."""
    sessions = {each: _opened(bundle, manifest, each) for each in tried}
    found: dict[_One, dict[str, float]] = {each: {} for each in tried}
    for tokens in sorted({min(each, manifest.max_tokens) for each in _LENGTHS}):
        batch = _batch(manifest.task, [tokens])
        calls = {each: partial(session.run, batch) for each, session in sessions.items()}
        for each, seconds in interleaved_medians(calls, 3 * rounds).items():
            found[each][f"1x{tokens}"] = round(seconds * 1e3, 4)
    return found


def _opened(bundle: Path, manifest: Manifest, way: _One) -> Session:
    """A session that runs as said."""
    return open_session(bundle, manifest, manifest.variant(way.precision), way.threads, kernels=way.kernels)


def _fastest(one: Mapping[_One, Mapping[str, float]]) -> _One:
    """The way whose times are shortest in the geometric mean."""
    return min(one, key=lambda tried: math.prod(one[tried].values()))


def _sequences_per_second(
    bundle: Path, manifest: Manifest, way_of_one: _One, lengths: Sequence[int], rounds: int
) -> tuple[dict[_Way, float], list[int]]:
    """Sequences per second by the way to run them, on all cores; and the lengths of those that there was time for."""
    cores = way_of_one.threads
    alone = _opened(bundle, manifest, way_of_one)
    parallel_sessions = ParallelSessions(
        alone, partial(_opened, bundle, manifest, way_of_one._replace(threads=1)), cores
    )
    ways = [_Way(runs, tokens) for runs in sorted({1, cores}) for tokens in _BATCH_TOKENS]
    timed = _affordable(alone, manifest.task, lengths)
    calls = {way: _pass(way, alone if way.runs == 1 else parallel_sessions, manifest.task, timed) for way in ways}
    for runs in {1, cores}:
        calls[_Way(runs, _BATCH_TOKENS[0])]()  # warms up, and opens the session
    medians = interleaved_medians(calls, rounds, warm=False)
    return {way: len(timed) / seconds for way, seconds in medians.items()}, timed


def _affordable(alone: Session, task: Task, lengths: Sequence[int]) -> list[int]:
    """So many of the lengths, evenly chosen, that a pass takes as long as it may."""
    few = _evenly(lengths, _LEAST)
    one_pass = _pass(_Way(1, _BATCH_TOKENS[-1]), alone, task, few)
    one_pass()
    start = time.perf_counter()
    one_pass()
    seconds = max(time.perf_counter() - start, 1e-9)
    return _evenly(lengths, max(_LEAST, round(len(few) * _PASS_SECONDS / seconds)))


def _evenly(lengths: Sequence[int], count: int) -> list[int]:
    """At most so many of the lengths, from all over the list."""
    return list(lengths[:: -(-len(lengths) // count)])


def _pass(way: _Way, session: Session | ParallelSessions, task: Task, lengths: Sequence[int]) -> Callable[[], None]:
    """Running sequences of those lengths once."""
    batches = [
        partial(_batch, task, [lengths[i] for i in indices])
        for indices in parallel_batches(lengths, way.tokens, way.runs)
    ]

    def run() -> None:
        if isinstance(session, ParallelSessions):
            for _ in session.run_many(batches):
                pass
        else:
            for make in batches:
                session.run(make())

    return run


def _batch(task: Task, lengths: Sequence[int]) -> Batch:
    """A padded batch of sequences with so many tokens."""
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    return Batch(task.valid_probe_ids(np.ones_like(mask)), mask, np.zeros_like(mask))
