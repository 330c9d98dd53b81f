"""Pre-train an encoder on raw text, from scratch or from a checkpoint."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from bert_models.corpus.text_files import Corpus
from bert_models.pretraining.batches import PretrainingBatches
from bert_models.pretraining.loop import fit
from bert_models.pretraining.model import PretrainingModel
from bert_models.pretraining.model_source import LoadedModel, ModelSource
from bert_models.pretraining.module import Pretraining
from bert_models.pretraining.settings import PretrainSettings
from bert_models.pretraining.token_cache import TokenCache, split_documents
from bert_models.pretraining.tokenizing import tokenize_corpus
from bert_models.pretraining.vocabulary import PretrainingVocabulary
from bert_models.training.distributed.placement import DEFAULT_PLACEMENT, Placement, settings_identity
from bert_models.training.distributed.process_group import ProcessGroup, no_progress
from bert_models.training.lifecycle import (
    describe_environment,
    describe_run,
    prepare_run,
    start_run,
    write_checkpoint,
)
from bert_models.training.logs import build_loggers
from bert_models.training.precision import ChosenPrecision, fastest_precision, num_measured
from bert_models.training.run_dir import LOGS_DIR, STATE_DIR
from bert_runtime.cache import cache_dir

__all__ = ["default_cache_dir", "pretrain"]

_PROGRESS_INTERVAL_S = 10
"""Seconds between two progress messages of tokenization."""


def default_cache_dir() -> Path:
    """Return the folder that tokenized corpora are kept in, see `bert_runtime.cache`."""
    return cache_dir("tokens")


def pretrain(
    source: ModelSource,
    corpus: Corpus,
    output: str | Path,
    settings: PretrainSettings,
    *,
    cache: str | Path | None = None,
    placement: Placement = DEFAULT_PLACEMENT,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Pre-train a model and write the checkpoint of the last step.

    During training, `output/training` holds the state of the run, which is saved after every evaluation, and
    `output/logs` holds the metrics of every step.

    With several processes, all of them return the report; rank zero alone reports progress and writes.

    Args:
        source: the model to start from, see `InitialModel`.
        corpus: raw text, see `bert_models.corpus`.
        output: folder of the checkpoint.
        settings: objective, masking, optimizer, steps and precision.
        cache: folder that tokenized corpora are kept in; by default `default_cache_dir()`.
        placement: number of processes, and how they share the model.
        resume: go on with the interrupted run in `output`.
        force: replace what an earlier run wrote: its logs when training starts, its checkpoint when it has finished.
        progress: called with a line of text at every stage.

    Returns:
        The report, which is also written to `output/training.json`: metrics of all evaluations, settings, corpus,
        machine and versions.

    Raises:
        TrainingError: the settings, the output or the machine do not allow the run, or it was interrupted.
        CheckpointError: the base or the tokenizer cannot be used.
        DataError: the corpus cannot be read or is too small.
    """
    folder = Path(output)
    with start_run(folder, settings, placement, progress, resume=resume, force=force) as started:
        process_group, report_progress = started
        loaded = process_group.local_rank_zero_first(lambda: _load_model(source, settings))
        model = loaded.model
        report_progress("tokenizing the corpus, or reading its tokens from the cache")
        cache_folder = default_cache_dir() if cache is None else cache
        on_tokens = _throttled_progress(report_progress)
        tokens = process_group.local_rank_zero_first(
            lambda: tokenize_corpus(corpus, loaded.tokenizer, cache_folder, on_tokens)
        )
        with process_group.sync_errors():
            vocabulary = PretrainingVocabulary.from_tokenizer(loaded.tokenizer)
            train, dev = _build_batches(tokens, vocabulary, settings, process_group)
        report_progress(
            f"{tokens.num_tokens} tokens in {tokens.num_documents} documents; held out: {_num_tokens(dev)} tokens in "
            f"{len(dev.documents)} documents"
        )
        identity = _identity(settings, process_group.world_size, source, tokens, dev)
        precision = process_group.from_rank_zero(
            lambda: prepare_run(
                folder, model, identity, lambda: _choose_precision(settings, model, train), report_progress,
                resume=resume,
            )
        )  # fmt: skip
        module = Pretraining(model, train, dev, settings, precision.name, identity, process_group)
        start = time.monotonic()
        loggers = build_loggers(folder / LOGS_DIR)
        fit(module, settings, precision, folder / STATE_DIR, resume=resume, loggers=loggers)
        report = {
            "objective": settings.objective,
            "measured": module.history,
            **describe_run(module, precision, time.monotonic() - start),
            "corpus": _describe_corpus(tokens, train, dev),
            "start": identity["start"],
            "base_revision": loaded.revision,
            "parameters": sum(p.numel() for p in model.parameters()),
            **describe_environment(),
        }
        report_progress("writing the checkpoint")
        process_group.from_rank_zero(lambda: _write(folder, module, loaded, settings, report))
        return report


def _identity(
    settings: PretrainSettings, world_size: int, source: ModelSource, tokens: TokenCache, dev: PretrainingBatches
) -> dict[str, Any]:
    """Return what must match for a run to be resumed."""
    return {
        **settings_identity(settings, world_size),
        "start": source.describe(),
        "corpus": tokens.folder.name,
        "held-out tokens": _num_tokens(dev),
    }


def _num_tokens(batches: PretrainingBatches) -> int:
    return int(batches.cache.document_tokens[batches.documents].sum())


def _describe_corpus(tokens: TokenCache, train: PretrainingBatches, dev: PretrainingBatches) -> dict[str, Any]:
    return {
        "key": tokens.folder.name,
        "tokens": tokens.num_tokens,
        "documents": {"train": len(train.documents), "dev": len(dev.documents)},
        "dev_tokens": _num_tokens(dev),
    }


def _throttled_progress(report_progress: Callable[[str], None]) -> Callable[[int], None]:
    """Return a callback that takes a number of tokens and reports it at most every ten seconds."""
    last = time.monotonic()

    def progress(num_tokens: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_INTERVAL_S:
            last = time.monotonic()
            report_progress(f"{num_tokens} tokens so far")

    return progress


def _load_model(source: ModelSource, settings: PretrainSettings) -> LoadedModel:
    """Load or build the model, with the same weights in every process."""
    pl.seed_everything(settings.seed, verbose=False)
    return source.load(settings)


def _build_batches(
    tokens: TokenCache, vocabulary: PretrainingVocabulary, settings: PretrainSettings, process_group: ProcessGroup
) -> tuple[PretrainingBatches, PretrainingBatches]:
    """Return this process's part of the training batches, and all batches of the held-out documents."""
    # The wrong continuations of next-sentence prediction come from other documents.
    min_documents = 2 if settings.objective == "mlm+nsp" else 1
    train, dev = split_documents(tokens.document_tokens, settings.dev_fraction, settings.seed, min_documents)
    rank, world_size = process_group.rank, process_group.world_size
    batch_settings = settings.batch_settings()
    return (
        PretrainingBatches(tokens, train, vocabulary, batch_settings, rank=rank, world_size=world_size),
        PretrainingBatches(tokens, dev, vocabulary, batch_settings),
    )


def _choose_precision(
    settings: PretrainSettings, model: PretrainingModel, batches: PretrainingBatches
) -> ChosenPrecision:
    batch = batches[0]
    sentence_labels = torch.zeros(len(batch.input_ids), dtype=torch.int64)
    tensors = [batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.labels, sentence_labels]
    measured = num_measured(len(batch.input_ids), batch.input_ids.numel())
    tensors = [tensor[:measured] for tensor in tensors]
    return fastest_precision(settings.precision, model, tensors, lambda parts: model.loss(model.measure(*parts)))


def _write(
    output: Path, module: Pretraining, loaded: LoadedModel, settings: PretrainSettings, report: Mapping[str, Any]
) -> None:
    """Write the checkpoint; one that goes on from another reads texts as long as before."""
    max_tokens = max(settings.max_tokens, loaded.max_tokens)
    accuracies = [name for name in module.history[-1] if name.endswith("_accuracy")]
    write_checkpoint(
        output,
        lambda folder: module.model.save(folder, loaded.tokenizer_from, max_tokens),
        module,
        accuracies,
        report,
    )
