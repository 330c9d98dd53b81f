"""Pre-training an encoder on raw text, from scratch or from a checkpoint, with Lightning's loop."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger
from tokenizers import Tokenizer

from bert_models.checkpoint import load_model, open_checkpoint
from bert_models.config import EncoderConfig
from bert_models.errors import TrainingError
from bert_models.families import FAMILIES
from bert_models.files import replaced_folder, write_json
from bert_models.pretraining.batches import PretrainingBatches
from bert_models.pretraining.corpus import Corpus
from bert_models.pretraining.model import MaskedLanguageModel, PretrainingModel, ReplacedTokenModel
from bert_models.pretraining.module import Pretraining
from bert_models.pretraining.settings import PretrainSettings
from bert_models.pretraining.token_cache import split_documents
from bert_models.pretraining.tokenizing import cached_tokens
from bert_models.pretraining.vocabulary import Vocabulary
from bert_models.task_settings import mask_settings
from bert_models.tokenizer_files import read_tokenizer
from bert_models.training.logs import build_loggers, finish_logs
from bert_models.training.loop import ProgressBar, interruptible, quiet, resumed_precision
from bert_models.training.place import (
    LAST_NAME,
    LOGS,
    REPORT_NAME,
    STATE,
    TRAINING_TOOLS,
    check_output,
    check_space,
    prepare,
)
from bert_models.training.precision import ChosenPrecision, check_precision, faster_precision
from bert_runtime.machine import available_cores, describe, installed_versions
from bert_runtime.tasks import FillMask, NextSentencePrediction, ReplacedTokenDetection

__all__ = ["Start", "default_cache", "fit", "pretrain"]

_HEADS = {
    "mlm": (FillMask.name,),
    "mlm+nsp": (FillMask.name, NextSentencePrediction.name),
    "mlm+sop": (FillMask.name, NextSentencePrediction.name),
    "rtd": (FillMask.name, ReplacedTokenDetection.name),
}
"""The heads that a family must have for an objective."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a run starts from: a named size of a family with a tokenizer, or a checkpoint."""

    family: str | None = None
    size: str | None = None
    tokenizer: str | Path | None = None
    """A folder with tokenizer files."""
    base: str | Path | None = None
    """A checkpoint's folder or hub id, in the place of the other three."""

    def __post_init__(self) -> None:
        scratch = (self.family, self.size, self.tokenizer)
        if (self.base is None) != all(each is not None for each in scratch) or (self.base and any(scratch)):
            raise TrainingError("expected either a family, a size and a tokenizer to start from, or a base checkpoint")


def default_cache() -> Path:
    """Where tokenized corpora are kept: below `XDG_CACHE_HOME`, by default `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert-export" / "tokens"


def pretrain(
    start: Start,
    corpus: Corpus,
    output: str | Path,
    settings: PretrainSettings,
    *,
    cache: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Pre-trains and writes the checkpoint of the last step to `output`; returns the report.

    The tokenized corpus is kept in `cache`, see `cached_tokens`. While it runs, `output/training` holds the state after
    each measurement and `output/logs` the numbers of each step; `resume` goes on from the state. With `force`, logs
    that an earlier run left there go when training starts, its weights when it has finished. Raises `TrainingError`,
    `CheckpointError` or `DataError`.
    """
    target = Path(output)
    check_output(target, resume=resume, force=force)
    check_precision(settings.precision)
    pl.seed_everything(settings.seed, verbose=False)
    folder, model, tokenizer, revision = _model(start, settings)
    check_space(target, model)
    progress("tokenizing the corpus, or finding its tokens")
    tokens = cached_tokens(corpus, tokenizer, default_cache() if cache is None else cache)
    train, dev = split_documents(tokens.num_documents, settings.dev_share, settings.seed)
    vocabulary = Vocabulary.of(tokenizer)
    train_batches, dev_batches = (
        PretrainingBatches(tokens, documents, vocabulary, settings.batches()) for documents in (train, dev)
    )
    progress(f"{tokens.num_tokens} tokens in {tokens.num_documents} documents, {len(dev)} of these held out")
    state = target / STATE
    described = {key: str(value) for key, value in asdict(start).items() if value is not None}
    run = {**asdict(settings), "start": described, "corpus": tokens.folder.name}
    precision = resumed_precision(state, run) if resume else _precision(settings, model, train_batches, progress)
    prepare(target, resume=resume)
    module = Pretraining(model, train_batches, dev_batches, settings, precision.name, run)
    started = time.monotonic()
    fit(module, settings, precision, state, resume=resume, loggers=build_loggers(target / LOGS))
    report = {
        "objective": settings.objective,
        "measured": module.history,
        "settings": asdict(settings),
        "precision": precision.name,
        "seconds_per_step": precision.seconds_per_step,
        "seconds": round(time.monotonic() - started, 1),
        "corpus": {
            "key": tokens.folder.name,
            "tokens": tokens.num_tokens,
            "documents": {"train": len(train), "dev": len(dev)},
        },
        "start": described,
        "base_revision": revision,
        "parameters": sum(p.numel() for p in model.parameters()),
        "machine": describe(),
        "versions": installed_versions(TRAINING_TOOLS),
    }
    progress("writing the checkpoint")
    with replaced_folder(target) as building:
        model.save(building, folder, settings.max_tokens)
        finish_logs(target, building, module.rows, [name for name in module.history[-1] if name.endswith("_accuracy")])
        write_json(building / REPORT_NAME, report)
    return report


class _Begun(NamedTuple):
    """The tokenizer's folder, the model under the objective's heads, the tokenizer, and a base's commit on the hub."""

    folder: Path
    model: PretrainingModel
    tokenizer: Tokenizer
    revision: str | None = None


def _model(start: Start, settings: PretrainSettings) -> _Begun:
    if start.base is not None:
        return _continued(start.base, settings)
    assert start.family is not None
    assert start.size is not None
    assert start.tokenizer is not None
    if start.family not in FAMILIES:
        raise TrainingError(f"expected a family of {', '.join(FAMILIES)}, found {start.family!r}")
    folder = Path(start.tokenizer)
    tokenizer = read_tokenizer(folder, start.family)
    vocabulary = Vocabulary.of(tokenizer)
    config = FAMILIES[start.family].preset(start.size, vocab_size=vocabulary.size, pad_token_id=vocabulary.pad)
    _check(config, settings)
    mask = FillMask(**mask_settings(tokenizer, folder))
    if settings.objective == "rtd":
        return _Begun(folder, ReplacedTokenModel(config, mask), tokenizer)
    return _Begun(folder, MaskedLanguageModel(config, mask, pairs=settings.objective != "mlm"), tokenizer)


def _continued(base: str | Path, settings: PretrainSettings) -> _Begun:
    """The model of a checkpoint; heads that it lacks are new."""
    source = open_checkpoint(base)
    _check(source.config, settings)
    if settings.objective == "rtd":
        raise TrainingError("rtd trains two models from scratch: give --family, --size and --tokenizer, not --base")
    task = source.task(FillMask.name)
    assert isinstance(task, FillMask)
    loaded = load_model(source, task, new_head=True)
    model = MaskedLanguageModel(source.config, task, pairs=settings.objective != "mlm", model=loaded)
    return _Begun(source.path, model, source.tokenizer(), source.revision)


def _check(config: EncoderConfig, settings: PretrainSettings) -> None:
    """Raises `TrainingError` for an objective that the family has no heads for, or more tokens than it reads."""
    family = FAMILIES[config.family]
    if missing := [name for name in _HEADS[settings.objective] if name not in family.head_weights]:
        fitting = ", ".join(name for name, heads in _HEADS.items() if set(heads) <= family.head_weights.keys())
        raise TrainingError(
            f"{family.name} has no head for {', '.join(missing)}, which {settings.objective} needs; its objectives are "
            f"{fitting}"
        )
    if settings.max_tokens > config.max_tokens:
        raise TrainingError(f"expected at most {config.max_tokens} max_tokens, found {settings.max_tokens}")


def _precision(
    settings: PretrainSettings,
    model: PretrainingModel,
    batches: PretrainingBatches,
    progress: Callable[[str], None],
) -> ChosenPrecision:
    torch.set_num_threads(available_cores())
    batch = batches[0]
    labels = torch.zeros(len(batch.input_ids), dtype=torch.int64)
    arrays = [batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.labels, labels]
    chosen = faster_precision(settings.precision, model, arrays, lambda parts: model.loss(model.measure(*parts)))
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
    """Runs Lightning's loop; the module then holds the weights of the last step."""
    last = ModelCheckpoint(
        dirpath=state, filename=LAST_NAME.removesuffix(".ckpt"), enable_version_counter=False,
        save_on_train_epoch_end=False,  # but after each measurement
    )  # fmt: skip
    with quiet():
        trainer = pl.Trainer(
            max_steps=settings.steps,
            max_epochs=-1,
            val_check_interval=min(settings.eval_every, settings.steps) * settings.accumulate,
            check_val_every_n_epoch=None,
            accumulate_grad_batches=settings.accumulate,
            accelerator="cuda" if torch.cuda.is_available() else "cpu",
            devices=1,
            precision=precision.lightning_name,
            gradient_clip_val=settings.max_grad_norm,
            callbacks=[last, ProgressBar()],
            logger=list(loggers) or False,
            log_every_n_steps=1,
            num_sanity_val_steps=0,
            enable_model_summary=False,
            reload_dataloaders_every_n_epochs=1,
        )
        module.train()  # Lightning leaves modes as they are
        with interruptible(state, "measurement"), redirect_stdout(sys.stderr):  # where Lightning's bar draws itself
            trainer.fit(module, ckpt_path=state / LAST_NAME if resume else None, weights_only=True)
        if not module.history or module.history[-1]["step"] != settings.steps:
            with redirect_stdout(sys.stderr):
                trainer.validate(module, verbose=False)
    module.cpu().eval()
