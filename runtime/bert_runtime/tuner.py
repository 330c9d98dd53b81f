"""Measuring how a bundle runs fastest on this machine."""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bert_runtime.batching import batches_of_runs
from bert_runtime.loading import bundle_tokenizer, can_run, choose_variant, open_session
from bert_runtime.machine import available_cores
from bert_runtime.manifest import Manifest
from bert_runtime.plan import Plan, Tuning, write_tuning
from bert_runtime.side_by_side import SideBySide
from bert_runtime.tasks import Task
from bert_runtime.tokenization import Batch, as_text_input

__all__ = ["interleaved_medians", "tune"]

_LENGTHS = (16, 128)
"""Tokens of one input that are timed: a chat message and a paragraph."""

_BATCH_TOKENS = (128, 256, 512, 1024, 2048)

_MANY = 512
"""Inputs that come at once, at most."""

_PASS_SECONDS = 0.5
"""What one pass over many inputs may take: there are dozens of them."""

_Name = TypeVar("_Name", bound=Hashable)


class _Many(NamedTuple):
    """A way to run many inputs."""

    runs: int
    threads: int
    """Of each run."""
    tokens: int
    """Of one batch, at most."""

    def __str__(self) -> str:
        return f"{self.runs} × {self.threads} threads, {self.tokens} tokens"


def tune(
    bundle: str | Path,
    *,
    inputs: Iterable[Any] | None = None,
    threads: int | None = None,
    rounds: int = 5,
    progress: Callable[[str], None] = lambda stage: None,
) -> Tuning:
    """Measures variant, threads, runs side by side and batch size on this machine, and keeps the fastest in the bundle.

    INT8 competes where it is the bundle's default: elsewhere it was found too far from FP32, or slower.

    Args:
        bundle: the directory; `tuning.json` is written into it, which `load` reads.
        inputs: inputs like those that will come, of which only the lengths matter. By default lengths that vary as
            those of short texts do: log-normal, 22 tokens in the middle, cut off at 128.
        threads: the most threads to use; by default the cores that are granted.
        rounds: how many times everything is timed, in turns; medians count.
        progress: called with a line at the start of each stage.

    Raises:
        BundleError: not a bundle, or it cannot be written to.
        InputError: an input that the bundle's task does not take.
    """
    path = Path(bundle)
    manifest = Manifest.read(path)
    cores = available_cores() if threads is None else threads
    lengths = _usual_lengths(manifest.max_tokens) if inputs is None else _lengths(path, manifest, inputs)
    default = choose_variant(manifest, "auto").precision
    precisions = [v.precision for v in manifest.variants_for("cpu") if can_run(v) and v.precision in (default, "fp32")]
    progress(f"timing one input in {' and '.join(precisions)}")
    one = _one_input_ms(path, manifest, [(name, cores) for name in precisions], rounds)
    precision = _fastest(one)[0]
    counts = sorted({1 << power for power in range(cores.bit_length())} | {cores})
    if len(counts) > 1:
        progress(f"timing one input on {', '.join(map(str, counts))} threads")
        one |= _one_input_ms(path, manifest, [(precision, count) for count in counts], rounds)
    best = _fastest({tried: ms for tried, ms in one.items() if tried[0] == precision})[1]
    progress("timing many inputs")
    many = _many_inputs_per_second(path, manifest, precision, cores, lengths, rounds)
    chosen = max(many, key=lambda tried: many[tried])
    if chosen.runs == 1:
        best = chosen.threads  # those of one run after the other are those of one input
    measured = {
        "one_input_ms": {f"{name}, {count} threads": ms for (name, count), ms in one.items()},
        "tokens_of_many_inputs": {"mean": round(float(np.mean(lengths)), 1), "longest": max(lengths)},
        "many_inputs_per_second": {str(tried): round(value, 1) for tried, value in many.items()},
    }
    return write_tuning(
        path,
        Plan(
            precision=precision, threads=best, parallel_runs=chosen.runs, threads_per_run=chosen.threads,
            max_batch_tokens=chosen.tokens,
        ),
        measured,
    )  # fmt: skip


def interleaved_medians(
    calls: Mapping[_Name, Callable[[], object]], rounds: int, *, warm: bool = True
) -> dict[_Name, float]:
    """Median seconds of each call, each round making all of them in turn.

    `warm` makes each call twice and times the second, since the caches belong to the one that ran last.
    """
    samples: dict[_Name, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            if warm:
                call()
            start = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in samples.items()}


def _usual_lengths(max_tokens: int) -> list[int]:
    """Tokens of inputs as short texts have them, the same every time."""
    drawn = np.random.default_rng(0).lognormal(math.log(22), 0.6, _MANY)
    return [int(each) for each in np.clip(drawn, 3, min(128, max_tokens))]


def _lengths(bundle: Path, manifest: Manifest, inputs: Iterable[Any]) -> list[int]:
    """Tokens of the windows of those inputs, of evenly many of them where they are more than are timed."""
    read = [as_text_input(each) for each in inputs]
    chosen = read[:: -(-len(read) // _MANY)] if read else []
    encoded = bundle_tokenizer(bundle, manifest).encode(chosen)
    return [len(window) for windows in encoded for window in windows] or _usual_lengths(manifest.max_tokens)


def _one_input_ms(
    bundle: Path, manifest: Manifest, tried: Sequence[tuple[str, int]], rounds: int
) -> dict[tuple[str, int], dict[str, float]]:
    """Milliseconds of one input by precision and threads, and by shape, such as `1x16`."""
    sessions = {each: open_session(bundle, manifest, manifest.variant(each[0]), each[1]) for each in tried}
    found: dict[tuple[str, int], dict[str, float]] = {each: {} for each in tried}
    for tokens in sorted({min(each, manifest.max_tokens) for each in _LENGTHS}):
        batch = _batch(manifest.task, [tokens])
        calls = {each: partial(session.run, batch) for each, session in sessions.items()}
        for each, seconds in interleaved_medians(calls, 3 * rounds).items():
            found[each][f"1x{tokens}"] = round(seconds * 1e3, 4)
    return found


def _fastest(one: Mapping[tuple[str, int], Mapping[str, float]]) -> tuple[str, int]:
    """The precision and threads whose times are shortest in the geometric mean."""
    return min(one, key=lambda tried: math.prod(one[tried].values()))


def _many_inputs_per_second(
    bundle: Path, manifest: Manifest, precision: str, cores: int, lengths: Sequence[int], rounds: int
) -> dict[_Many, float]:
    """Inputs per second by the way to run them, on all cores."""
    variant = manifest.variant(precision)
    counts = [runs for runs in range(1, cores + 1) if cores % runs == 0]
    sessions = {
        runs: SideBySide(partial(open_session, bundle, manifest, variant, cores // runs), runs) for runs in counts
    }
    parts: dict[_Many, list[Callable[[], Batch]]] = {}

    def run(way: _Many) -> None:
        for _ in sessions[way.runs].run_many(parts[way]):
            pass

    ways = [_Many(runs, cores // runs, tokens) for runs in counts for tokens in _BATCH_TOKENS]
    for number in (min(64, len(lengths)), len(lengths)):  # a few first, to know how many there is time for
        for way in ways:
            batches = batches_of_runs(lengths[:number], way.tokens, way.runs)
            parts[way] = [partial(_batch, manifest.task, [lengths[i] for i in indices]) for indices in batches]
        if number == len(lengths):
            break
        run(ways[-1])
        start = time.perf_counter()
        run(ways[-1])
        affordable = round(number * _PASS_SECONDS / (time.perf_counter() - start))
        lengths = lengths[: max(number, affordable)]
    for way in (ways[counts.index(runs) * len(_BATCH_TOKENS)] for runs in counts):
        run(way)  # opens the session
    medians = interleaved_medians({way: partial(run, way) for way in ways}, rounds, warm=False)
    return {way: len(lengths) / seconds for way, seconds in medians.items()}


def _batch(task: Task, lengths: Sequence[int]) -> Batch:
    """A padded batch of inputs with so many tokens."""
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    return Batch(task.answerable(np.ones_like(mask)), mask, np.zeros_like(mask))
