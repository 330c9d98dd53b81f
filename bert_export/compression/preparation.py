"""Prepare a search: check what is given, and measure the uncompressed model."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bert_export.calibration_texts import padded_batches, spread
from bert_export.compression.augmentation import SimilarWords, augmented_rows, shares_of_copies
from bert_export.compression.candidates import ALL_TOKENS, KEPT_PERCENTS, Shape, feed_forward_widths
from bert_export.compression.data import SearchData
from bert_export.compression.goal import CompressionSettings, Goal
from bert_export.compression.latency_graphs import cut_to_shape, open_int8_graph
from bert_export.compression.latency_table import LatencyTable, corner_shapes, kept_share, measure_latencies
from bert_export.compression.measuring import Reference
from bert_export.exporter import export
from bert_models import Checkpoint, TaskModel
from bert_models.distillation.losses import SOFT_LOSSES
from bert_models.distillation.run import unlabelled_examples
from bert_models.errors import CompressionError, ConfigError
from bert_models.first_token import check_prunable
from bert_models.hub import CHECKPOINT_FILES
from bert_runtime.bundle.manifest import MANIFEST_NAME, sha256_file
from bert_runtime.errors import DataError
from bert_runtime.machine import describe
from bert_runtime.records import Record
from bert_runtime.tasks import Reranking, Task
from bert_runtime.tokenization import TextTokenizer

__all__ = [
    "SearchRequest",
    "augment",
    "check_task",
    "fit_length",
    "kept_percents",
    "measure_table",
    "open_reference",
    "time_shapes",
]

_STEPS = "sample, fit, copies"
"""The steps of a search, for its journal: one of another order of steps cannot be continued."""

_LENGTH_PERCENTILE = 99
"""Share of the texts that `fit_length` leaves whole, in percent."""

_LENGTH_STEP = 8

_MAX_KEPT_SHARE = 0.9
"""Share of all texts' tokens that stays where a half should, from which on pruning is not worth a candidate: most texts
are then hardly longer than the tokens that always stay. A judgement."""

_CALIBRATION_WINDOWS = 32
"""Windows that the graphs of the latency table are calibrated on."""


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """The arguments of a search."""

    goal: Goal
    settings: CompressionSettings
    checkpoint: str | Path
    output: Path
    train: Path
    unlabelled: Path | None
    dev: Path
    test: Path | None
    columns: Mapping[str, str]
    force: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the search, beside the output."""
        return self.output.with_name(f"{self.output.name}.search")

    def identity(self, source: Checkpoint) -> dict[str, Any]:
        """Return what must be equal for an interrupted search to go on, as JSON values."""
        machine = describe()
        files = {"train": self.train, "unlabelled": self.unlabelled, "dev": self.dev}
        if self.test is not None:
            files["test"] = self.test
        return {
            "steps": _STEPS,
            "processor": f"{machine['cpu']}, {machine['cpu_model']}",  # latencies of another one mean nothing here
            "cores": machine["cores"],  # nor those with other cores of it
            **asdict(self.goal),
            **self.settings.identity(),
            "training": self.settings.training(epochs=1).to_dict(),
            "checkpoint": source.sha256(),
            "settings of the checkpoint": _settings_sha256(source.path),
            "columns": dict(self.columns),
            **{f"sha256 of {name}": None if path is None else sha256_file(path) for name, path in files.items()},
        }


def _settings_sha256(checkpoint: Path) -> str:
    """Return the SHA-256 of the names and hashes of a checkpoint's files without weights: configuration, tokenizer."""
    found = {path for pattern in CHECKPOINT_FILES for path in checkpoint.glob(pattern)}
    kept = sorted(path for path in found if path.suffix not in (".safetensors", ".bin", ".md"))
    lines = [f"{path.relative_to(checkpoint).as_posix()} {sha256_file(path)}\n" for path in kept]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_task(source: Checkpoint) -> Task:
    """Return the task of the checkpoint, or raise `CompressionError` if it cannot be distilled and judged."""
    task = source.task()
    if task.name not in SOFT_LOSSES or isinstance(task, Reranking):
        supported = ", ".join(name for name in SOFT_LOSSES if name != Reranking.name)
        why = "rows of one query must stay together" if isinstance(task, Reranking) else "no labelled file distils it"
        raise CompressionError(
            f"{source.path}: expected a checkpoint of {supported}, found {task.name}, which compress does not support: "
            f"{why}"
        )
    return task


def fit_length(
    request: SearchRequest, task: Task, tokenizer: TextTokenizer, data: SearchData, progress: Callable[[str], None]
) -> SearchRequest:
    """Lower the maximum length to what 99 % of the search's rows need, rounded up to a multiple of 8, and say so.

    Raises:
        CompressionError: the task splits long texts into windows instead of truncating them.
    """
    if not request.settings.fit_length:
        return request
    if task.windows is not None:
        raise CompressionError(
            f"{task.name} reads long texts in windows, whose length cannot follow from dev; give --max-tokens N"
        )
    lengths = np.array([sum(map(len, windows)) for windows in tokenizer.encode(task.prefixed(data.texts()))])
    needed = ceil(float(np.percentile(lengths, _LENGTH_PERCENTILE)) / _LENGTH_STEP) * _LENGTH_STEP
    max_tokens = min(needed, tokenizer.max_tokens)
    longer = int((lengths > max_tokens).sum())
    progress(
        f"warning: texts are truncated to {max_tokens} tokens, as {longer} of {len(lengths)} of dev are; the "
        f"checkpoint reads {tokenizer.max_tokens}"
    )
    return replace(request, settings=replace(request.settings, max_tokens=max_tokens, fit_length=False))


def open_reference(
    request: SearchRequest, data: SearchData, tokenizer: TextTokenizer, given: Path, progress: Callable[[str], None]
) -> Reference:
    """Export the uncompressed model, unless that is done, and open its INT8 variant.

    It reads texts of the checkpoint's own length, so that a loss by truncation counts, too.
    """
    bundle = request.folder / "uncompressed"
    if not (bundle / MANIFEST_NAME).is_file():
        progress("exporting the uncompressed model")
        export(request.checkpoint, bundle, calibrate=given)
    return Reference(bundle, data.texts(), tokenizer)


def augment(
    data: SearchData,
    model: TaskModel,
    tokenizer: TextTokenizer,
    count: int,
    seed: int,
    progress: Callable[[str], None],
) -> SearchData:
    """Return the rows with copies of those to train on, as long as the search's rows of dev, and say how many.

    Args:
        data: the rows.
        model: the uncompressed model, whose token embeddings tell which words are similar.
        tokenizer: its tokenizer.
        count: copies of each row, on average.
        seed: seed of the copies.
        progress: called with how many there are.
    """
    given = data.given
    if count == 0:
        return data
    similar = SimilarWords(given, tokenizer.token_ids, model.encoder.embeddings.token.weight.detach().float().numpy())
    copies = augmented_rows(given, similar, count, shares_of_copies(given, data.search_records), seed)
    augmented = data.with_copies([record for record in copies if _is_readable(record, model.task, tokenizer)])
    progress(
        f"{len(given)} rows to train on, and {len(augmented.copies)} copies with words replaced by similar ones, where "
        "there is time for these"
    )
    return augmented


def _is_readable(record: Record, task: Task, tokenizer: TextTokenizer) -> bool:
    """Return whether the task accepts a row: a question of other words may have more tokens than it may."""
    try:
        return bool(unlabelled_examples(task, tokenizer, [record]))
    except DataError:
        return False


def kept_percents(
    source: Checkpoint, task: Task, prune_tokens: str, lengths: Sequence[int], progress: Callable[[str], None]
) -> tuple[int, ...]:
    """Return which percentages of a text's tokens candidates may keep, and say why if it is all of them.

    Args:
        source: the uncompressed checkpoint.
        task: its task.
        prune_tokens: a value of `bert_export.compression.goal.PRUNINGS`.
        lengths: typical lengths in tokens.
        progress: called with the reason.
    """
    if prune_tokens == "none" or source.config.num_layers == 1:
        return (ALL_TOKENS,)
    half = Shape(source.config.num_layers, source.config.intermediate_size, 50)
    try:
        check_prunable(replace(source.config, token_pruning=half.token_pruning), task)
    except ConfigError as error:
        progress(f"candidates keep all tokens: {error}")
        return (ALL_TOKENS,)
    if (share := kept_share(lengths, half.kept_percent)) > _MAX_KEPT_SHARE:
        progress(
            f"candidates keep all tokens: dev's texts are short, and {share:.0%} of their tokens would stay anyway"
        )
        return (ALL_TOKENS,)
    return KEPT_PERCENTS


def measure_table(
    model: TaskModel,
    reference: Reference,
    data: SearchData,
    percents: Sequence[int],
    progress: Callable[[str], None],
) -> LatencyTable:
    """Measure INT8 graphs of a few shapes, from which the latencies of all follow."""
    config = model.config
    corners = corner_shapes(config.num_layers, feed_forward_widths(config.intermediate_size), percents)
    return LatencyTable(time_shapes(model, reference, data, corners, progress), reference.lengths)


def time_shapes(
    model: TaskModel, reference: Reference, data: SearchData, shapes: Sequence[Shape], progress: Callable[[str], None]
) -> dict[Shape, float]:
    """Return the milliseconds of INT8 graphs of some shapes, and of the uncompressed model in the same rounds."""
    tokenizer = reference.tokenizer
    full = Shape(model.config.num_layers, model.config.intermediate_size)
    windows = [window for text in tokenizer.encode(model.task.prefixed(data.texts())) for window in text]
    batches = padded_batches(spread(windows, _CALIBRATION_WINDOWS), tokenizer)
    with TemporaryDirectory() as name:
        models: dict[Shape, Any] = {full: reference.model}
        for number, shape in enumerate(shapes):
            if shape in models:
                continue
            tokens = "" if shape.token_pruning is None else f" that prunes tokens ({shape.token_pruning})"
            progress(f"making a graph of {shape.num_layers} layers of width {shape.intermediate_size}{tokens}")
            folder = Path(name) / str(number)
            folder.mkdir()
            models[shape] = open_int8_graph(cut_to_shape(model, shape), tokenizer, batches, folder)
        progress(f"timing {len(models)} shapes on {len(reference.texts)} texts of dev")
        return measure_latencies(models, reference.texts)
