"""Workloads of the CUDA experiment: full batches, batches of mixed lengths, and texts."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from bert_bench.experiments.cuda_engines import Engine, RunBatch
from bert_bench.settings import GRID, Settings
from bert_bench.workloads import build_workload, mixed_lengths
from bert_runtime.batching import length_sorted_batches
from bert_runtime.model import Model
from bert_runtime.runner import FunctionRunner
from bert_runtime.tasks import Task
from bert_runtime.tokenization import Batch, TextTokenizer

__all__ = ["Workload", "forward_workloads", "make_batches", "text_workloads"]

_SHAPES = (*GRID, (128, 128))
"""Sequences and tokens of the full batches."""

_MIXED_TEXTS = 512
_BATCH_TOKENS = 16384
"""Most tokens in a batch of texts that are sorted by length."""
_UNSORTED_BATCH_SIZE = 128

_CALLERS, _CALLS_PER_CALLER = 4, 16

_SEED = 0
"""Seed of token ids and lengths."""


@dataclass(frozen=True)
class Workload:
    """A number of sequences, and per engine the function that processes them."""

    sequences: int
    functions: Mapping[str, Callable[[], object]]


def make_batches(task: Task, vocab_size: int, max_tokens: int) -> dict[str, list[Batch]]:
    """Make the batches of random token ids to time.

    Args:
        task: the ids are valid for it.
        vocab_size: ids are below it.
        max_tokens: longest sequence of the model. Shapes with more tokens are left out.

    Returns:
        By workload: one full batch of each shape, and texts of mixed lengths in several batches.
    """
    generator = np.random.default_rng(_SEED)

    def batch(lengths: list[int]) -> Batch:
        shape = (len(lengths), max(lengths))
        mask = (np.arange(shape[1])[None, :] < np.array(lengths)[:, None]).astype(np.int64)
        return Batch(task.valid_probe_ids(generator.integers(0, vocab_size, shape)), mask, np.zeros(shape, np.int64))

    batches = {
        f"{sequences}x{tokens}": [batch([tokens] * sequences)] for sequences, tokens in _SHAPES if tokens <= max_tokens
    }
    lengths = mixed_lengths(_MIXED_TEXTS, _SEED, max_tokens)
    sorted_indices = length_sorted_batches(lengths, _BATCH_TOKENS)
    batches["mixed"] = [batch([lengths[i] for i in indices]) for indices in sorted_indices]
    starts = range(0, len(lengths), _UNSORTED_BATCH_SIZE)
    batches["mixed, unsorted"] = [batch(lengths[i : i + _UNSORTED_BATCH_SIZE]) for i in starts]
    return batches


def forward_workloads(engines: Mapping[str, Engine], batches: Mapping[str, Sequence[Batch]]) -> dict[str, Workload]:
    """Return the workloads from token ids to outputs; each has the engines that accept all of its batches."""

    def run_all(run: RunBatch, batches: Sequence[Batch]) -> None:
        for batch in batches:
            run(batch)

    return {
        name: Workload(
            sum(len(batch.input_ids) for batch in workload_batches),
            {
                engine_name: partial(run_all, engine.run, workload_batches)
                for engine_name, engine in engines.items()
                if all(map(engine.accepts, workload_batches))
            },
        )
        for name, workload_batches in batches.items()
    }


def text_workloads(engines: Mapping[str, Engine], task: Task, tokenizer: TextTokenizer) -> dict[str, Workload]:
    """Return the workloads from texts to results: one text, many texts, and several threads.

    All engines use the runtime's tokenization and decoding. Engines that do not accept any padding are left out.
    """
    settings = Settings(shapes=((1, 16),), text_tokens=(14,), num_texts=_MIXED_TEXTS)
    workload = build_workload(task, tokenizer, {}, settings)
    (text,), texts = workload.singles[0].texts, list(workload.offline[0].texts)
    models = {
        name: Model(task, tokenizer, FunctionRunner(engine.run), max_batch_tokens=_BATCH_TOKENS)
        for name, engine in engines.items()
        if engine.accepts_any_padding
    }

    def call_with_single_texts(model: Model) -> None:
        for single_text in texts[:_CALLS_PER_CALLER]:
            model(single_text)

    def call_from_threads(model: Model) -> None:
        with ThreadPoolExecutor(_CALLERS) as pool:
            list(pool.map(call_with_single_texts, [model] * _CALLERS))

    threaded = {name: partial(call_from_threads, model) for name, model in models.items() if engines[name].thread_safe}
    return {
        "one text": Workload(1, {name: partial(model, text) for name, model in models.items()}),
        f"{len(texts)} texts": Workload(len(texts), {name: partial(model, texts) for name, model in models.items()}),
        f"{_CALLERS} callers": Workload(_CALLERS * _CALLS_PER_CALLER, threaded),
    }
