"""What a pre-training run starts from: new weights of a named size, or a checkpoint."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from bert_models.checkpoint import Checkpoint, load_model, open_checkpoint
from bert_models.config import EncoderConfig
from bert_models.errors import TrainingError
from bert_models.families import FAMILIES
from bert_models.model import TaskModel
from bert_models.pretraining.model import MaskedLanguageModel, PretrainingModel, ReplacedTokenModel
from bert_models.pretraining.settings import PretrainSettings
from bert_models.pretraining.vocabulary import PretrainingVocabulary
from bert_models.task_settings import read_mask_token
from bert_models.tokenizer_files import read_tokenizer
from bert_models.training.run_dir import GENERATOR_FOLDER
from bert_runtime.tasks import FillMask, NextSentencePrediction, ReplacedTokenDetection

__all__ = ["InitialModel", "LoadedModel", "ModelSource", "check_objective"]

_HEADS = {
    "mlm": (FillMask.name,),
    "mlm+nsp": (FillMask.name, NextSentencePrediction.name),
    "mlm+sop": (FillMask.name, NextSentencePrediction.name),
    "rtd": (FillMask.name, ReplacedTokenDetection.name),
}
"""The heads that a family must have for an objective."""


class LoadedModel(NamedTuple):
    """A run's model before its first step."""

    tokenizer_from: Path
    """Folder with the tokenizer's files."""
    model: PretrainingModel
    tokenizer: Tokenizer
    revision: str | None = None
    """A base's commit on the hub."""


class ModelSource(ABC):
    """What a run starts from."""

    @abstractmethod
    def open(self, settings: PretrainSettings) -> LoadedModel:
        """The model for an objective; raises `TrainingError`, `CheckpointError` or `ConfigError`."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What is said of it in the report, and must be the same in a resumed run."""


@dataclass(frozen=True, kw_only=True)
class InitialModel(ModelSource):
    """What a run starts from: a named size of a family with a tokenizer, or a checkpoint."""

    family: str | None = None
    size: str | None = None
    tokenizer: str | Path | None = None
    """A folder with tokenizer files."""
    base: str | Path | None = None
    """A checkpoint's folder or hub id, in the place of the other three."""
    initializer_range: float | None = None
    """Standard deviation of new weights; by default the size's own, BERT's 0.02. On a toy text, a discriminator of
    width 64 stayed on the plateau of its beginning with that, and left it with 0.1."""

    def __post_init__(self) -> None:
        scratch = (self.family, self.size, self.tokenizer)
        if (self.base is None) != all(each is not None for each in scratch) or (self.base and any(scratch)):
            raise TrainingError("expected either a family, a size and a tokenizer to start from, or a base checkpoint")
        if self.initializer_range is not None and not (self.base is None and self.initializer_range > 0):
            raise TrainingError(
                f"expected an initializer_range above 0, and new weights that it is for, found {self.initializer_range}"
                + (f" with the base {self.base}" if self.base is not None else "")
            )

    def describe(self) -> dict[str, Any]:
        return {key: str(value) for key, value in asdict(self).items() if value is not None}

    def open(self, settings: PretrainSettings) -> LoadedModel:
        if self.base is not None:
            return _continued(self.base, settings)
        assert self.family is not None
        assert self.size is not None
        assert self.tokenizer is not None
        changes = {} if self.initializer_range is None else {"initializer_range": self.initializer_range}
        return _from_scratch(self.family, self.size, Path(self.tokenizer), settings, changes)


def _from_scratch(
    name: str, size: str, folder: Path, settings: PretrainSettings, changes: Mapping[str, Any]
) -> LoadedModel:
    """A model of new weights; `changes` are fields of its configuration."""
    if name not in FAMILIES:
        raise TrainingError(f"expected a family of {', '.join(FAMILIES)}, found {name!r}")
    tokenizer = read_tokenizer(folder, name)
    vocabulary = PretrainingVocabulary.from_tokenizer(tokenizer)
    config = FAMILIES[name].preset(size, vocab_size=vocabulary.size, pad_token_id=vocabulary.pad_id, **changes)
    check_objective(config, settings)
    mask = FillMask(**read_mask_token(tokenizer, folder))
    if settings.objective == "rtd":
        return LoadedModel(folder, ReplacedTokenModel(config, mask), tokenizer)
    return LoadedModel(folder, MaskedLanguageModel(config, mask, pairs=settings.objective != "mlm"), tokenizer)


def _continued(base: str | Path, settings: PretrainSettings) -> LoadedModel:
    """The model of a checkpoint; heads that it lacks are new."""
    source = open_checkpoint(base)
    if settings.objective == "rtd":
        return _continued_rtd(source, settings)
    check_objective(source.config, settings)
    task = source.task(FillMask.name)
    assert isinstance(task, FillMask)
    pairs, sentence = settings.objective != "mlm", None
    if pairs:
        sentence = load_model(source, source.task(NextSentencePrediction.name), new_head=True).head
    loaded = load_model(source, task, new_head=True)
    model = MaskedLanguageModel(source.config, task, pairs=pairs, model=loaded, sentence=sentence)
    return LoadedModel(source.path, model, source.tokenizer(), source.revision)


def _continued_rtd(source: Checkpoint, settings: PretrainSettings) -> LoadedModel:
    """A discriminator that goes on from ELECTRA's or from BERT's encoder; its generator does where it lies beside it.

    BERT's encoder is that of an ELECTRA whose embeddings are as wide as its hidden states.
    """
    tokenizer = source.tokenizer()
    mask, detection = FillMask(**read_mask_token(tokenizer, source.path)), ReplacedTokenDetection()
    from_bert = source.family.name == "bert"
    config = replace(source.config, family="electra", **FAMILIES["electra"].defaults) if from_bert else source.config
    check_objective(config, settings)
    if from_bert:
        discriminator = TaskModel(config, detection)
        discriminator.encoder.load_state_dict(load_model(source, mask, new_head=True).encoder.state_dict())
    else:
        discriminator = load_model(source, detection, new_head=True)
    model = ReplacedTokenModel(config, mask, discriminator)
    if (folder := source.path / GENERATOR_FOLDER).is_dir():
        beside = open_checkpoint(folder)
        if beside.config != model.generator.config:
            raise TrainingError(
                f"{folder}: expected one of {model.generator.config}, a quarter as wide as its discriminator, found "
                f"{beside.config}"
            )
        model.generator.load_state_dict(load_model(beside, mask).state_dict())
    return LoadedModel(source.path, model, tokenizer, source.revision)


def check_objective(config: EncoderConfig, settings: PretrainSettings) -> None:
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
