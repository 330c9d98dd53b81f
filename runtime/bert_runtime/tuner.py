"""Tuning: measure which configuration runs a bundle fastest on this machine."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_runtime.batching import parallel_batches
from bert_runtime.bundle.assets import check_assets
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.cpu.native_kernels import kernel_names
from bert_runtime.cpu.parallel_sessions import ParallelSessions
from bert_runtime.cpu.session import Session
from bert_runtime.errors import InputError
from bert_runtime.inputs import SingleInput, as_text_input
from bert_runtime.loading import bundle_tokenizer, open_session
from bert_runtime.machine import available_cores
from bert_runtime.plan import Plan, Tuning, check_writable, write_tuning
from bert_runtime.tasks import Task
from bert_runtime.timing import interleaved_medians
from bert_runtime.tokenization import Batch
from bert_runtime.variant_choice import can_run, choose_variant, gains_speed

__all__ = ["tune"]

_LATENCY_LENGTHS = (16, 128)
"""Tokens of the single inputs that are timed: a chat message and a paragraph."""

_BATCH_TOKENS = (128, 256, 512, 1024, 2048)
"""Padded tokens per batch that are tried."""

_MAX_SEQUENCES = 512
"""Sequences per pass, at most."""

_MIN_SEQUENCES = 16
"""Sequences per pass, at least: enough to divide among parallel batches."""

_PASS_SECONDS = 0.5
"""Target duration of one pass over the sequences; there are dozens of passes. A judgement."""


class _LatencyConfig(NamedTuple):
    """A configuration for one input."""

    precision: str
    threads: int
    kernels: bool

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.precision}, {threads}{'' if self.kernels else ', without native kernels'}"


class _ThroughputConfig(NamedTuple):
    """A configuration for many sequences."""

    inter_threads: int
    """Batches in parallel, one thread each; 1 for one at a time on all threads."""
    max_batch_tokens: int

    def __str__(self) -> str:
        batches = f"{self.inter_threads} batches in parallel" if self.inter_threads > 1 else "one batch at a time"
        return f"{batches}, {self.max_batch_tokens} tokens"


_Latencies = dict[_LatencyConfig, dict[str, float]]
"""Milliseconds of one input, by configuration and shape, such as `1x16`."""


def tune(
    bundle: str | Path,
    *,
    inputs: Iterable[SingleInput] | None = None,
    rounds: int = 5,
    progress: Callable[[str], None] = lambda stage: None,
) -> Tuning:
    """Measure variants, native kernels, threads, parallel batches and batch sizes, and store the fastest in the bundle.

    `load` follows the result on machines like this one. INT8 takes part if the export found it close enough to FP32,
    even where it was slower on the exporting machine. The result holds for the number of cores granted now.

    Args:
        bundle: the directory; `tuning.json` is written into it.
        inputs: inputs like those to be served, of which only the lengths matter. By default, full windows for tasks
            that read long texts in windows; for others, lengths of short texts: log-normal with a median of 22 tokens,
            cut off at 128.
        rounds: how often each configuration is timed, in turns; the median counts.
        progress: called with a line at the start of each stage.

    Returns:
        The measurements and the plan that they chose.

    Raises:
        BundleError: not a bundle, damaged, or not writable.
        InputError: an input does not fit the bundle's task, or there is none.
    """
    path = Path(bundle)
    manifest = Manifest.read(path)
    precisions = _candidate_precisions(manifest)
    assets = (asset for name in precisions for asset in manifest.variant(name).assets)
    check_assets(path, (manifest.tokenizer, *assets))
    check_writable(path)
    cores = available_cores()
    lengths = _typical_lengths(manifest) if inputs is None else _input_lengths(path, manifest, inputs)
    latencies, fastest = _time_precisions(path, manifest, precisions, cores, rounds, progress)
    latencies |= _time_threads(path, manifest, fastest, rounds, progress)
    progress("timing many inputs")
    throughputs, timed = _sequences_per_second(path, manifest, fastest, lengths, rounds)
    best = max(throughputs, key=lambda config: throughputs[config])
    by_threads = {config: times for config, times in latencies.items() if config._replace(threads=cores) == fastest}
    return write_tuning(
        path,
        Plan(
            precision=fastest.precision,
            kernels=fastest.kernels,
            # One batch at a time runs on all cores, as it was timed.
            threads=cores if best.inter_threads == 1 else _fastest(by_threads).threads,
            inter_threads=best.inter_threads,
            max_batch_tokens=best.max_batch_tokens,
        ),
        {
            "one_input_ms": {str(config): times for config, times in latencies.items()},
            "sequences": {"number": len(timed), "mean_tokens": round(float(np.mean(timed)), 1), "most": max(timed)},
            "sequences_per_second": {str(config): round(value, 1) for config, value in throughputs.items()},
        },
    )


def _candidate_precisions(manifest: Manifest) -> list[str]:
    """Return the precisions that take part: the default, FP32, and those that are faithful to it."""
    default = choose_variant(manifest, "auto").precision
    variants = [variant for variant in manifest.variants_for("cpu") if can_run(variant) and gains_speed(variant)]
    return [variant.precision for variant in variants if variant.faithful or variant.precision in (default, "fp32")]


def _typical_lengths(manifest: Manifest) -> list[int]:
    """Return sequence lengths in tokens as the task usually has them, the same every time."""
    if manifest.task.windows is not None:
        return [manifest.max_tokens] * _MAX_SEQUENCES
    drawn = np.random.default_rng(0).lognormal(math.log(22), 0.6, _MAX_SEQUENCES)
    return [int(length) for length in np.clip(drawn, 3, min(128, manifest.max_tokens))]


def _input_lengths(bundle: Path, manifest: Manifest, inputs: Iterable[SingleInput]) -> list[int]:
    """Return the lengths in tokens of the inputs' windows, of an even sample where there are too many."""
    read = [as_text_input(value) for value in inputs]
    if not read:
        raise InputError("expected inputs to tune with, found none")
    tokenizer, task = bundle_tokenizer(bundle, manifest), manifest.task
    sample = range(0, len(read), -(-len(read) // _MAX_SEQUENCES))
    return [
        len(window)
        for index in sample
        for windows in tokenizer.encode(task.prefixed([read[index]]), index)
        for window in windows
    ]


def _time_precisions(
    bundle: Path,
    manifest: Manifest,
    precisions: Sequence[str],
    cores: int,
    rounds: int,
    progress: Callable[[str], None],
) -> tuple[_Latencies, _LatencyConfig]:
    """Time one input in each precision on all cores, with and without native kernels; return the fastest, too."""
    progress(f"timing one input in {' and '.join(precisions)}")
    configs = [_LatencyConfig(name, cores, True) for name in precisions]
    kernels = set(kernel_names())
    configs += [
        _LatencyConfig(name, cores, False) for name in precisions if kernels & set(manifest.variant(name).functions)
    ]
    latencies = _one_input_ms(bundle, manifest, configs, rounds)
    return latencies, _fastest(latencies)


def _time_threads(
    bundle: Path, manifest: Manifest, config: _LatencyConfig, rounds: int, progress: Callable[[str], None]
) -> _Latencies:
    """Time one input on one thread, a quarter, half and all of the configuration's; empty where it has one."""
    cores = config.threads
    counts = sorted({1, max(1, cores // 4), max(1, cores // 2), cores})
    if len(counts) == 1:
        return {}
    progress(f"timing one input on {', '.join(map(str, counts))} threads")
    return _one_input_ms(bundle, manifest, [config._replace(threads=count) for count in counts], rounds)


def _one_input_ms(bundle: Path, manifest: Manifest, configs: Sequence[_LatencyConfig], rounds: int) -> _Latencies:
    """Time one input of each length in each configuration."""
    sessions = {config: _open_session(bundle, manifest, config) for config in configs}
    latencies: _Latencies = {config: {} for config in configs}
    for tokens in sorted({min(length, manifest.max_tokens) for length in _LATENCY_LENGTHS}):
        batch = _probe_batch(manifest.task, [tokens])
        calls = {config: partial(session.run, batch) for config, session in sessions.items()}
        for config, seconds in interleaved_medians(calls, 3 * rounds).items():
            latencies[config][f"1x{tokens}"] = round(seconds * 1e3, 4)
    return latencies


def _open_session(bundle: Path, manifest: Manifest, config: _LatencyConfig) -> Session:
    variant = manifest.variant(config.precision)
    return open_session(bundle, manifest, variant, config.threads, kernels=config.kernels)


def _fastest(latencies: Mapping[_LatencyConfig, Mapping[str, float]]) -> _LatencyConfig:
    """Return the configuration with the lowest geometric mean over the shapes."""
    return min(latencies, key=lambda config: math.prod(latencies[config].values()))


def _sequences_per_second(
    bundle: Path, manifest: Manifest, config: _LatencyConfig, lengths: Sequence[int], rounds: int
) -> tuple[dict[_ThroughputConfig, float], list[int]]:
    """Time many sequences on all cores; return sequences per second by configuration, and the lengths that were timed.

    `config` has the precision and kernels to use, and the number of cores.
    """
    cores = config.threads
    session = _open_session(bundle, manifest, config)
    open_single_thread = partial(_open_session, bundle, manifest, config._replace(threads=1))
    parallel_sessions = ParallelSessions(session, open_single_thread, cores)
    counts = sorted({1, cores})
    configs = [_ThroughputConfig(count, tokens) for count in counts for tokens in _BATCH_TOKENS]
    timed = _affordable_lengths(session, manifest.task, lengths)
    calls = {
        config: _make_pass(config, session if config.inter_threads == 1 else parallel_sessions, manifest.task, timed)
        for config in configs
    }
    for count in counts:
        calls[_ThroughputConfig(count, _BATCH_TOKENS[0])]()  # warms up, and opens the single-threaded session
    medians = interleaved_medians(calls, rounds, warm=False)
    return {config: len(timed) / seconds for config, seconds in medians.items()}, timed


def _affordable_lengths(session: Session, task: Task, lengths: Sequence[int]) -> list[int]:
    """Return an even sample of the lengths, so many that one pass takes about `_PASS_SECONDS`."""
    few = _even_sample(lengths, _MIN_SEQUENCES)
    run_pass = _make_pass(_ThroughputConfig(1, _BATCH_TOKENS[-1]), session, task, few)
    run_pass()
    start = time.perf_counter()
    run_pass()
    seconds = max(time.perf_counter() - start, 1e-9)
    return _even_sample(lengths, max(_MIN_SEQUENCES, round(len(few) * _PASS_SECONDS / seconds)))


def _even_sample(lengths: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of the lengths, evenly spaced."""
    return list(lengths[:: -(-len(lengths) // count)])


def _make_pass(
    config: _ThroughputConfig, session: Session | ParallelSessions, task: Task, lengths: Sequence[int]
) -> Callable[[], None]:
    """Return a function that runs sequences of those lengths once."""
    batches = [
        partial(_probe_batch, task, [lengths[index] for index in indices])
        for indices in parallel_batches(lengths, config.max_batch_tokens, config.inter_threads)
    ]

    def run_pass() -> None:
        if isinstance(session, ParallelSessions):
            for _ in session.run_many(batches):
                pass
        else:
            for make in batches:
                session.run(make())

    return run_pass


def _probe_batch(task: Task, lengths: Sequence[int]) -> Batch:
    """Return a right-padded batch of sequences of those lengths."""
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    return Batch(task.valid_probe_ids(np.ones_like(mask)), mask, np.zeros_like(mask))
