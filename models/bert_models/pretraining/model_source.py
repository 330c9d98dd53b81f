"""The model that pre-training starts from: new weights of a named size, or a checkpoint."""

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
"""Heads that a family must have, by objective."""


class LoadedModel(NamedTuple):
    """A model that is ready to be trained, and its tokenizer."""

    tokenizer_from: Path
    """Folder with the tokenizer's files, which are copied to the trained checkpoint."""
    model: PretrainingModel
    """The model with its initial weights."""
    tokenizer: Tokenizer
    """The tokenizer of that folder."""
    revision: str | None = None
    """Commit of a checkpoint from the hub."""
    max_tokens: int = 0
    """Length in tokens that a checkpoint was made for; 0 for new weights."""


class ModelSource(ABC):
    """Provides the model that a run starts from."""

    @abstractmethod
    def load(self, settings: PretrainSettings) -> LoadedModel:
        """Load or build the model for the objective of `settings`.

        Raises:
            TrainingError: the model cannot be trained with these settings.
            CheckpointError: a checkpoint or tokenizer cannot be read.
            ConfigError: the configuration of a checkpoint is not supported.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the `start` entry of the report, which must match for a run to be resumed."""


@dataclass(frozen=True, kw_only=True)
class InitialModel(ModelSource):
    """New weights of a named size with a tokenizer, or a checkpoint to continue from.

    Raises:
        TrainingError: neither `base` nor all of `family`, `size` and `tokenizer` are given, or both are.
    """

    family: str | None = None
    """Key of `bert_models.FAMILIES`."""
    size: str | None = None
    """Named size of the family, such as `tiny`, `small` or `base`."""
    tokenizer: str | Path | None = None
    """Folder with tokenizer files."""
    base: str | Path | None = None
    """Folder or hub id of a checkpoint, instead of the other three."""
    initializer_range: float | None = None
    """Standard deviation of new weights; by default that of the size, BERT's 0.02.

    On a toy corpus, a discriminator of width 64 did not leave its initial plateau with 0.02, and did with 0.1.
    """

    def __post_init__(self) -> None:
        new_model = (self.family, self.size, self.tokenizer)
        if (self.base is None) != all(part is not None for part in new_model) or (self.base and any(new_model)):
            raise TrainingError("expected either a family, a size and a tokenizer to start from, or a base checkpoint")
        if self.initializer_range is not None and not (self.base is None and self.initializer_range > 0):
            raise TrainingError(
                f"expected an initializer_range above 0, and new weights to apply it to, found {self.initializer_range}"
                + (f" with the base {self.base}" if self.base is not None else "")
            )

    def describe(self) -> dict[str, Any]:
        return {key: str(value) for key, value in asdict(self).items() if value is not None}

    def load(self, settings: PretrainSettings) -> LoadedModel:
        if self.base is not None:
            return _load_base(self.base, settings)
        assert self.family is not None
        assert self.size is not None
        assert self.tokenizer is not None
        overrides = {} if self.initializer_range is None else {"initializer_range": self.initializer_range}
        return _build_new(self.family, self.size, Path(self.tokenizer), settings, overrides)


def _build_new(
    family: str, size: str, folder: Path, settings: PretrainSettings, overrides: Mapping[str, Any]
) -> LoadedModel:
    """Build a model with new weights; `overrides` are fields of its configuration."""
    if family not in FAMILIES:
        raise TrainingError(f"expected a family of {', '.join(FAMILIES)}, found {family!r}")
    tokenizer = read_tokenizer(folder, family)
    vocabulary = PretrainingVocabulary.from_tokenizer(tokenizer)
    padding = FAMILIES[family].fixed_config.get("pad_token_id", vocabulary.pad_id)
    if vocabulary.pad_id != padding:
        raise TrainingError(
            f"{folder}: {family} needs a vocabulary with the padding token at id {padding}, found it at "
            f"{vocabulary.pad_id}; take the tokenizer of one of its checkpoints, or another family"
        )
    config = FAMILIES[family].preset(size, vocab_size=vocabulary.size, pad_token_id=vocabulary.pad_id, **overrides)
    check_objective(config, settings)
    mask = FillMask(**read_mask_token(tokenizer, folder))
    if settings.objective == "rtd":
        return LoadedModel(folder, ReplacedTokenModel(config, mask), tokenizer)
    return LoadedModel(folder, MaskedLanguageModel(config, mask, pairs=settings.objective != "mlm"), tokenizer)


def _load_base(base: str | Path, settings: PretrainSettings) -> LoadedModel:
    """Load the model of a checkpoint; heads that it lacks are new."""
    source = open_checkpoint(base)
    if settings.objective == "rtd":
        return _load_rtd(source, settings)
    check_objective(source.config, settings)
    task = source.task(FillMask.name)
    assert isinstance(task, FillMask)
    pairs, sentence = settings.objective != "mlm", None
    if pairs:
        sentence = load_model(source, source.task(NextSentencePrediction.name), new_head=True).head
    loaded = load_model(source, task, new_head=True)
    model = MaskedLanguageModel(source.config, task, pairs=pairs, model=loaded, sentence=sentence)
    return LoadedModel(source.path, model, source.tokenizer(), source.revision, source.max_tokens)


def _load_rtd(source: Checkpoint, settings: PretrainSettings) -> LoadedModel:
    """Load a discriminator from ELECTRA's or from BERT's encoder, and its generator if the checkpoint has one.

    BERT's encoder equals that of an ELECTRA whose embeddings are as wide as its hidden states.
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
        generator = open_checkpoint(folder)
        if generator.config != model.generator.config:
            raise TrainingError(
                f"{folder}: expected a generator with {model.generator.config}, a quarter as wide as its "
                f"discriminator, found {generator.config}"
            )
        model.generator.load_state_dict(load_model(generator, mask).state_dict())
    return LoadedModel(source.path, model, tokenizer, source.revision, source.max_tokens)


def check_objective(config: EncoderConfig, settings: PretrainSettings) -> None:
    """Check that a model can be trained with these settings.

    Raises:
        TrainingError: the family has no head for the objective, or the model reads fewer tokens than `max_tokens`.
    """
    family = FAMILIES[config.family]
    if missing := [name for name in _HEADS[settings.objective] if name not in family.head_weights]:
        supported = ", ".join(name for name, heads in _HEADS.items() if set(heads) <= family.head_weights.keys())
        raise TrainingError(
            f"{family.name} has no head for {', '.join(missing)}, which {settings.objective} needs; its objectives are "
            f"{supported}"
        )
    if settings.max_tokens > config.max_tokens:
        raise TrainingError(f"expected at most {config.max_tokens} max_tokens, found {settings.max_tokens}")
