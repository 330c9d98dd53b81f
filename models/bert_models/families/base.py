"""What makes a family: which checkpoint keys mean what."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from bert_models.config import EncoderConfig
from bert_models.errors import ConfigError

__all__ = ["EMBEDDING_WEIGHTS", "Family", "WeightMap"]

WeightMap = Mapping[str, str]
"""Our module prefixes to the checkpoint's. `{n}` stands for a layer's number; a key `a.b` covers `a.b.weight` too."""


EMBEDDING_WEIGHTS: WeightMap = {"layers.{n}": "dense.{n}", "pooling.score": "pooling.score"}
"""The head of sentence-embedding, which sentence-transformers keeps in folders of their own; the same for all."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A member of the BERT family, as the tables that translate its checkpoints. Both tables are read both ways."""

    name: str
    """`model_type` in a checkpoint's `config.json`."""

    prefix: str
    """What the encoder's keys begin with in a checkpoint that has a head."""

    config_keys: Mapping[str, str]
    """Fields of `EncoderConfig` to keys of `config.json`."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `EncoderConfig` that are the same in every checkpoint of the family."""

    always_projects: bool = False
    """Whether the embeddings are projected even where their width is the hidden size."""

    fixed_config: Mapping[str, Any]
    """Keys of `config.json` that must have this value where they occur: options this family does not support."""

    encoder_weights: WeightMap
    """The encoder's modules to the checkpoint's keys, without `prefix`."""

    head_weights: Mapping[str, WeightMap]
    """Per task that the family has a head for, the head's modules to the checkpoint's keys, with `prefix` where the
    checkpoint has it. A key may also be a whole parameter's name, for one that belongs to no module there."""

    architectures: Mapping[str, str]
    """Per task, the `transformers` class that loads our checkpoint."""

    base_architecture: str
    """The `transformers` class of the encoder alone; its checkpoints leave out `prefix`."""

    pretraining_architecture: str | None = None
    """The `transformers` class with a masked-language and a sentence-pair head, where there is one."""

    ignored_weights: str
    """Regular expression for keys that may be present and are not needed: other heads, buffers."""

    output_matrices: tuple[str, ...] = ()
    """Keys under which a checkpoint may hold the masked-language head's output matrix, which is the token embedding."""

    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Named sizes as fields of `EncoderConfig`: what a model is pre-trained with from scratch."""

    def preset(self, size: str, **changes: Any) -> EncoderConfig:
        """The configuration of a named size, with other values for some fields, such as `vocab_size`."""
        if size not in self.sizes:
            raise ConfigError(f"{self.name} has the sizes {', '.join(self.sizes)}, found {size!r}")
        return EncoderConfig(family=self.name, **{**self.defaults, **self.sizes[size], **changes})

    def parse_config(self, values: Mapping[str, Any], where: str) -> EncoderConfig:
        """The encoder's configuration from `config.json`; raises `ConfigError` for what is missing or unsupported."""
        problems = [
            f"{key} must be {expected!r}, found {values[key]!r}: this variation of {self.name} is not supported"
            for key, expected in self.fixed_config.items()
            if key in values and values[key] != expected
        ]
        required = {each.name for each in fields(EncoderConfig) if each.default is MISSING}
        missing = [key for name, key in self.config_keys.items() if name in required and values.get(key) is None]
        if missing:
            problems.append(f"missing {', '.join(missing)}")
        if problems:
            raise ConfigError(f"{where}: {'; '.join(problems)}")
        found = {name: values[key] for name, key in self.config_keys.items() if values.get(key) is not None}
        if found.get("embedding_size") == found["hidden_size"] and not self.always_projects:
            del found["embedding_size"]
        try:
            return EncoderConfig(family=self.name, **{**self.defaults, **found})
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"{where}: {error}") from None

    def dump_config(self, config: EncoderConfig) -> dict[str, Any]:
        """The inverse of `config`."""
        found = {key: getattr(config, name) for name, key in self.config_keys.items()}
        values = {key: value for key, value in found.items() if value is not None}
        if "embedding_size" in self.config_keys:
            values[self.config_keys["embedding_size"]] = config.embedding_width
        if "num_layer_groups" in self.config_keys:
            values[self.config_keys["num_layer_groups"]] = config.num_layer_groups or config.num_layers
        return {"model_type": self.name, **values}

    def checkpoint_key(self, parameter: str, task: str) -> str:
        """The checkpoint's name for one of our parameters, such as `encoder.layers.0.attention.query.weight`."""
        part, _, rest = parameter.partition(".")
        numbers = re.search(r"\blayers\.(\d+)\.", rest)
        pattern = re.sub(r"\blayers\.\d+\.", "layers.{n}.", rest)
        module, _, leaf = pattern.rpartition(".")
        table = self.encoder_weights if part == "encoder" else self.head_weights[task]
        key = table[pattern] if pattern in table else f"{table[module]}.{leaf}"
        key = key.format(n=numbers[1] if numbers else "")
        return f"{self.prefix}{key}" if part == "encoder" else key
