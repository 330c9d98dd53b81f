"""`Family`: the tables that translate between a family's checkpoints and our configuration and parameter names."""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from bert_models.config import EncoderConfig
from bert_models.errors import ConfigError
from bert_models.families.weight_layouts import WeightTranslation, same_names
from bert_models.field_types import type_problems
from bert_models.pruning_schedule import TokenPruning
from bert_runtime.tasks import FeatureExtraction, FillMask, Reranking, SparseEmbedding, TextClassification

__all__ = ["EMBEDDING_WEIGHTS", "Family", "WeightMap"]

PRUNING_KEY = "token_pruning"
"""Key of the schedule of token pruning in `config.json`, which `transformers` does not read."""

WeightMap = Mapping[str, str]
"""Our module names to the checkpoint's. `{n}` is a layer index; a key `a.b` covers `a.b.weight` and `a.b.bias`.

A name that ends in `[i/n]` is part i, from 0, of n equal parts along the first axis: `Wqkv[0/3]` are the queries of a
merged projection."""


EMBEDDING_WEIGHTS: WeightMap = {"layers.{n}": "dense.{n}", "pooling.score": "pooling.score"}
"""The sentence-embedding head of every family; sentence-transformers keeps its weights in separate folders."""

_RELEVANCE_WEIGHTS: WeightMap = {"layers.{n}.linear": "dense.{n}.linear", "layers.{n}.norm": "dense.{n}.norm"}
"""A reranking head of modules, whose weights are in separate folders, too."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model family, such as BERT or RoBERTa, as tables for its configuration keys and weight names.

    The tables are used in both directions: to load checkpoints and to save them.
    """

    name: str
    """`model_type` in a checkpoint's `config.json`."""

    other_names: tuple[str, ...] = ()
    """Other values of `model_type`, of checkpoints that were published with code of their own."""

    prefix: str
    """Prefix of the encoder's weight names in a checkpoint with a head."""

    config_keys: Mapping[str, str]
    """Fields of `EncoderConfig` to keys of `config.json`."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Default values of `EncoderConfig` fields for this family, used if `config.json` does not set them."""

    always_projects: bool = False
    """Whether the embeddings are projected even if their width equals the hidden size."""

    fixed_config: Mapping[str, Any]
    """Required values of keys of `config.json`, checked if present: other values are not supported."""

    canonical_config: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """Translates a `config.json` of another layout to the keys of `transformers`, which all other fields name."""

    read_config: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Translates what `config_keys` cannot, such as nested keys, to fields of `EncoderConfig`; raises `ConfigError`."""

    write_config: Callable[[EncoderConfig], Mapping[str, Any]] | None = None
    """The inverse of `read_config`."""

    encoder_weights: WeightMap
    """The encoder's modules to the checkpoint's names, without `prefix`."""

    canonical_weights: WeightTranslation = same_names
    """Translates the tensors of another layout to the names that `encoder_weights` and `head_weights` use."""

    head_weights: Mapping[str, WeightMap]
    """By task, the head's modules to the checkpoint's names, including `prefix` where the checkpoint has it.

    A key may also name a whole parameter that belongs to no module in the checkpoint. Tasks that are missing here have
    no head in this family."""

    architectures: Mapping[str, str]
    """By task, the `transformers` class that loads our checkpoint."""

    base_architecture: str
    """The `transformers` class of the encoder alone; its checkpoints omit `prefix`."""

    pretraining_architecture: str | None = None
    """The `transformers` class with a masked-language-model and a sentence-pair head, if there is one."""

    ignored_weights: str
    """Regular expression of weight names that may be present and are not needed: other heads, buffers."""

    decoder_weights: tuple[str, ...] = ()
    """Names of the masked-language-model head's output matrix, which must equal the token embedding (tied weights)."""

    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of `EncoderConfig` by size name (`base`, …), for pre-training from scratch."""

    def __post_init__(self) -> None:
        """Add the tasks whose head is another's: sparse embeddings pool what the masked-language model predicts.

        Reranking has the head of text classification, or one of modules. Feature extraction has no head at all.
        """
        for table in ("head_weights", "architectures"):
            values = getattr(self, table)
            if FillMask.name in values:
                values = {**values, SparseEmbedding.name: values[FillMask.name]}
            if TextClassification.name in values:
                values = {**values, Reranking.name: values[TextClassification.name]}
            object.__setattr__(self, table, values)
        object.__setattr__(self, "head_weights", {**self.head_weights, FeatureExtraction.name: {}})
        architectures = {**self.architectures, FeatureExtraction.name: self.base_architecture}
        object.__setattr__(self, "architectures", architectures)
        if Reranking.name in self.head_weights:
            head = {**self.head_weights[Reranking.name], **_RELEVANCE_WEIGHTS}
            object.__setattr__(self, "head_weights", {**self.head_weights, Reranking.name: head})

    def preset(self, size: str, **changes: Any) -> EncoderConfig:
        """Return the configuration of a named size.

        Args:
            size: a key of `sizes`.
            **changes: fields of `EncoderConfig` that differ, such as `vocab_size`.

        Raises:
            ConfigError: there is no such size, or the values are invalid.
        """
        if size not in self.sizes:
            raise ConfigError(f"{self.name} has the sizes {', '.join(self.sizes)}, found {size!r}")
        return EncoderConfig(family=self.name, **{**self.defaults, **self.sizes[size], **changes})

    def parse_config(self, values: Mapping[str, Any], where: str) -> EncoderConfig:
        """Translate `config.json` to an `EncoderConfig`.

        Args:
            values: the contents of `config.json`.
            where: the file, for error messages.

        Raises:
            ConfigError: keys are missing, or options are invalid or not supported.
        """
        problems = [
            f"{key} must be {expected!r}, found {values[key]!r:.80}: this variant of {self.name} is not supported"
            for key, expected in self.fixed_config.items()
            if key in values and values[key] != expected
        ]
        required = {item.name for item in fields(EncoderConfig) if item.default is MISSING} - self.defaults.keys()
        missing = [key for name, key in self.config_keys.items() if name in required and values.get(key) is None]
        if missing:
            problems.append(f"missing {', '.join(missing)}")
        found = {name: values[key] for name, key in self.config_keys.items() if values.get(key) is not None}
        problems += type_problems(EncoderConfig, found, self.config_keys)
        nested: Mapping[str, Any] = {}
        try:
            nested = {} if problems or self.read_config is None else self.read_config(values)
            if values.get(PRUNING_KEY) is not None:
                found["token_pruning"] = TokenPruning.parse(values[PRUNING_KEY])
        except ConfigError as error:
            problems.append(str(error))
        if problems:
            raise ConfigError(f"{where}: {'; '.join(problems)}")
        found |= nested
        if found.get("embedding_size") == found["hidden_size"] and not self.always_projects:
            del found["embedding_size"]
        try:
            return EncoderConfig(family=self.name, **{**self.defaults, **found})
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    def dump_config(self, config: EncoderConfig) -> dict[str, Any]:
        """Translate an `EncoderConfig` to keys of `config.json`; the inverse of `parse_config`."""
        found = {key: getattr(config, name) for name, key in self.config_keys.items()}
        values = {key: value for key, value in found.items() if value is not None}
        if "embedding_size" in self.config_keys:
            values[self.config_keys["embedding_size"]] = config.embedding_width
        if "num_layer_groups" in self.config_keys:
            values[self.config_keys["num_layer_groups"]] = config.num_layer_groups or config.num_layers
        nested = {} if self.write_config is None else self.write_config(config)
        pruning = {} if config.token_pruning is None else {PRUNING_KEY: str(config.token_pruning)}
        return {"model_type": self.name, **values, **nested, **pruning}

    def checkpoint_key(self, parameter: str, task: str) -> str:
        """Translate the name of a `TaskModel` parameter to the checkpoint's, which ends in `[i/n]` for a part.

        Args:
            parameter: such as `encoder.layers.0.attention.query.weight`.
            task: the task whose head the model has.
        """
        part, _, rest = parameter.partition(".")
        layer = re.search(r"\blayers\.(\d+)\.", rest)
        pattern = re.sub(r"\blayers\.\d+\.", "layers.{n}.", rest)
        module, _, leaf = pattern.rpartition(".")
        table = self.encoder_weights if part == "encoder" else self.head_weights[task]
        name, bracket, merged_part = table.get(pattern, table.get(module, "")).partition("[")
        if not name:
            raise KeyError(f"{self.name} has no name for {parameter}")
        key = (name if pattern in table else f"{name}.{leaf}") + bracket + merged_part
        key = key.format(n=layer[1] if layer else "")
        return f"{self.prefix}{key}" if part == "encoder" else key
