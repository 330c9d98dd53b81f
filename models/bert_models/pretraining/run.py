"""Pre-training an encoder on raw text, from scratch or from a checkpoint, with Lightning's loop."""

import copy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger

from bert_models.corpus.text_files import Corpus
from bert_models.files import write_json
from bert_models.pretraining.batches import PretrainingBatches
from bert_models.pretraining.model import PretrainingModel
from bert_models.pretraining.model_source import LoadedModel, ModelSource
from bert_models.pretraining.module import Pretraining
from bert_models.pretraining.settings import PretrainSettings
from bert_models.pretraining.token_cache import TokenCache, split_documents
from bert_models.pretraining.tokenizing import tokenize_corpus
from bert_models.pretraining.vocabulary import PretrainingVocabulary
from bert_models.training.distributed.placement import DEFAULT_PLACEMENT, Placement, settings_identity
from bert_models.training.distributed.process_group import ProcessGroup, join_processes, no_progress
from bert_models.training.distributed.sharding import full_state_dict
from bert_models.training.logs import build_loggers, finish_logs
from bert_models.training.loop import ProgressBar, interruptible, quiet, resumed_precision
from bert_models.training.precision import ChosenPrecision, check_precision, fastest_precision
from bert_models.training.run_dir import (
    LAST_NAME,
    LOGS_DIR,
    REPORT_NAME,
    STATE_DIR,
    TRAINING_TOOLS,
    check_output,
    check_space,
    prepare,
)
from bert_models.training.saving import AtomicCheckpointIO
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.cache import cache_dir
from bert_runtime.machine import available_cores, describe, installed_versions

__all__ = ["default_cache_dir", "fit", "pretrain"]

_TOLD_EVERY_S = 10
"""Between two lines on how far tokenization is."""


def default_cache_dir() -> Path:
    """Return the folder that tokenized corpora are kept in, see `bert_runtime.cache`."""
    return cache_dir("tokens")


def pretrain(
    start: ModelSource,
    corpus: Corpus,
    output: str | Path,
    settings: PretrainSettings,
    *,
    cache: str | Path | None = None,
    placement: Placement = DEFAULT_PLACEMENT,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Pre-trains and writes the checkpoint of the last step to `output`; returns the report.

    The tokenized corpus is kept in `cache`, see `tokenize_corpus`. `output/training` holds the state after
    each measurement and `output/logs` the numbers of each step; `resume` goes on from the state. With `force`, logs
    that an earlier run left there go when training starts, its weights when it has finished. Where `placement` has
    several processes they all return the report; the first alone reports progress and writes. Raises `TrainingError`,
    `CheckpointError` or `DataError`.
    """
    target, kept = Path(output), default_cache_dir() if cache is None else cache
    with join_processes(placement) as process_group:
        tell = progress if process_group.is_rank_zero else no_progress
        torch.set_num_threads(process_group.threads(available_cores()))
        process_group.from_rank_zero(lambda: check_output(target, resume=resume, force=force))
        with process_group.sync_errors():
            check_precision(settings.precision, sharded=process_group.is_sharded)
        folder, model, tokenizer, revision = process_group.local_rank_zero_first(lambda: _opened(start, settings))
        tell("tokenizing the corpus, or finding its tokens")
        tokens = process_group.local_rank_zero_first(
            lambda: tokenize_corpus(corpus, tokenizer, kept, _told_now_and_then(tell))
        )
        with process_group.sync_errors():
            train, dev = _batches(tokens, PretrainingVocabulary.from_tokenizer(tokenizer), settings, process_group)
        tell(f"{tokens.num_tokens} tokens in {tokens.num_documents} documents, {len(dev.documents)} of these held out")
        described = start.describe()
        run = {
            **settings_identity(settings, process_group.world_size),
            "start": described,
            "corpus": tokens.folder.name,
        }
        precision = process_group.from_rank_zero(
            lambda: _begin(target, model, train, settings, run, tell, resume=resume)
        )
        module = Pretraining(model, train, dev, settings, precision.name, run, process_group)
        started = time.monotonic()
        loggers = build_loggers(target / LOGS_DIR)
        fit(module, settings, precision, target / STATE_DIR, resume=resume, loggers=loggers)
        report = {
            "objective": settings.objective,
            "measured": module.history,
            "settings": settings.to_dict(),
            "placement": process_group.describe(settings.batch_size, settings.gradient_accumulation_steps),
            "precision": precision.name,
            "seconds_per_step": precision.seconds_per_step,
            "seconds": round(time.monotonic() - started, 1),
            "corpus": {
                "key": tokens.folder.name,
                "tokens": tokens.num_tokens,
                "documents": {"train": len(train.documents), "dev": len(dev.documents)},
            },
            "start": described,
            "base_revision": revision,
            "parameters": sum(p.numel() for p in model.parameters()),
            "machine": describe(),
            "versions": installed_versions(TRAINING_TOOLS),
        }
        tell("writing the checkpoint")
        process_group.from_rank_zero(lambda: _write(target, module, folder, settings, report))
        return report


def _told_now_and_then(tell: Callable[[str], None]) -> Callable[[int], None]:
    """What is called with the number of tokens after every megabyte, and tells it every ten seconds."""
    last = time.monotonic()

    def progress(num_tokens: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _TOLD_EVERY_S:
            last = time.monotonic()
            tell(f"{num_tokens} tokens so far")

    return progress


def _opened(start: ModelSource, settings: PretrainSettings) -> LoadedModel:
    """The model with its first weights, the same in every process."""
    pl.seed_everything(settings.seed, verbose=False)
    return start.open(settings)


def _batches(
    tokens: TokenCache, vocabulary: PretrainingVocabulary, settings: PretrainSettings, process_group: ProcessGroup
) -> tuple[PretrainingBatches, PretrainingBatches]:
    """This process's part of the batches to train on, and all batches of the documents that are held out."""
    train, dev = split_documents(tokens.num_documents, settings.dev_fraction, settings.seed)
    rank, world_size = process_group.rank, process_group.world_size
    return (
        PretrainingBatches(tokens, train, vocabulary, settings.batch_settings(), rank=rank, world_size=world_size),
        PretrainingBatches(tokens, dev, vocabulary, settings.batch_settings()),
    )


def _begin(
    target: Path,
    model: PretrainingModel,
    batches: PretrainingBatches,
    settings: PretrainSettings,
    run: Mapping[str, Any],
    progress: Callable[[str], None],
    *,
    resume: bool,
) -> ChosenPrecision:
    """Looks whether there is room, settles the precision, and makes the folder ready."""
    check_space(target, model)
    precision = resumed_precision(target / STATE_DIR, run) if resume else _precision(settings, model, batches, progress)
    prepare(target, resume=resume)
    return precision


def _write(
    target: Path, module: Pretraining, tokenizer: Path, settings: PretrainSettings, report: Mapping[str, Any]
) -> None:
    """The finished checkpoint with its logs, plot and report, in the place of the run's folder."""
    accuracies = [name for name in module.history[-1] if name.endswith("_accuracy")]
    with atomic_replace_dir(target) as building:
        module.model.save(building, tokenizer, settings.max_tokens)
        finish_logs(target, building, module.rows, accuracies)
        write_json(building / REPORT_NAME, report)


def _precision(
    settings: PretrainSettings,
    model: PretrainingModel,
    batches: PretrainingBatches,
    progress: Callable[[str], None],
) -> ChosenPrecision:
    batch = batches[0]
    labels = torch.zeros(len(batch.input_ids), dtype=torch.int64)
    arrays = [batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.labels, labels]
    chosen = fastest_precision(settings.precision, model, arrays, lambda parts: model.loss(model.measure(*parts)))
    chosen.tell(progress)
    return chosen


def fit(
    module: Pretraining,
    settings: PretrainSettings,
    precision: ChosenPrecision,
    state: Path,
    *,
    resume: bool,
    loggers: Sequence[Logger] = (),
) -> None:
    """Runs Lightning's loop; `module.model` then has the weights of the last step.

    Of several processes that share them the first alone has the weights, in another model than before.
    """
    process_group = module.process_group
    whole = copy.deepcopy(module.model) if process_group.is_sharded and process_group.is_rank_zero else module.model
    last = ModelCheckpoint(
        dirpath=state, filename=LAST_NAME.removesuffix(".ckpt"), enable_version_counter=False,
        save_on_train_epoch_end=False,  # but after each measurement
    )  # fmt: skip
    with quiet():
        trainer = pl.Trainer(
            max_steps=settings.steps,
            max_epochs=-1,
            val_check_interval=min(settings.eval_every, settings.steps) * settings.gradient_accumulation_steps,
            check_val_every_n_epoch=None,
            accumulate_grad_batches=settings.gradient_accumulation_steps,
            **process_group.trainer_options(),
            precision=precision.lightning_name,
            plugins=[AtomicCheckpointIO()],
            gradient_clip_val=settings.max_grad_norm,
            callbacks=[last, ProgressBar()],
            logger=list(loggers) or False,
            log_every_n_steps=1,
            num_sanity_val_steps=0,
            enable_model_summary=False,
            reload_dataloaders_every_n_epochs=1,
        )
        module.train()  # Lightning leaves modes as they are
        with interruptible(state), redirect_stdout(sys.stderr):  # where Lightning's bar draws itself
            trainer.fit(module, ckpt_path=state / LAST_NAME if resume else None, weights_only=True)
        if not module.history or module.history[-1]["step"] != settings.steps:
            with redirect_stdout(sys.stderr):
                trainer.validate(module, verbose=False)
    if process_group.is_sharded:
        weights = full_state_dict(module)
        if process_group.is_rank_zero:
            whole.load_state_dict({key.removeprefix("model."): value for key, value in weights.items()})
    elif process_group.is_rank_zero:
        whole.cpu()
    module.model = whole.eval()
