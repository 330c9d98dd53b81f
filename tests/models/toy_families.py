"""Toy-size random models of every family, built by transformers."""

from typing import Any

import torch
import transformers
from torch import Tensor, nn

from .toy import randomize, toy_config

_SMALL = toy_config()

CONFIGS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "bert": ("Bert", transformers.BertConfig, _SMALL),
    "roberta": ("Roberta", transformers.RobertaConfig, {**_SMALL, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "xlm-roberta": ("XLMRoberta", transformers.XLMRobertaConfig, {**_SMALL, "type_vocab_size": 1}),
    "camembert": ("Camembert", transformers.CamembertConfig, {**_SMALL, "type_vocab_size": 1}),
    "distilbert": (
        "DistilBert",
        transformers.DistilBertConfig,
        {"vocab_size": 101, "dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 37, "max_position_embeddings": 48},
    ),
    "albert": ("Albert", transformers.AlbertConfig, {**_SMALL, "embedding_size": 10, "num_hidden_groups": 2}),
    "electra": ("Electra", transformers.ElectraConfig, {**_SMALL, "embedding_size": 10}),
    "deberta-v2": (
        "DebertaV2",
        transformers.DebertaV2Config,
        {
            **_SMALL,
            "type_vocab_size": 0,
            "position_biased_input": False,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8,
            "max_relative_positions": 30,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        },
    ),
    "mpnet": ("MPNet", transformers.MPNetConfig, {k: v for k, v in _SMALL.items() if k != "type_vocab_size"}),
    "ernie": ("Ernie", transformers.ErnieConfig, {**_SMALL, "use_task_id": True}),
    "modernbert": (
        "ModernBert",
        transformers.ModernBertConfig,
        {
            **{key: value for key, value in _SMALL.items() if key != "type_vocab_size"},
            "local_attention": 6,  # three tokens on each side: inputs are several windows long
            "classifier_pooling": "mean",
            **{f"{role}_token_id": index for index, role in enumerate(("pad", "cls", "sep", "bos", "eos"))},
        },
    ),
    "nomic_bert": ("NomicBert", transformers.NomicBertConfig, _SMALL),
    "gte": ("Gte", transformers.GteConfig, _SMALL),
}
"""By `model_type`: prefix of its class names, configuration class, toy sizes.

DeBERTa's has fewer buckets than tokens, so that some of them are logarithmic."""


UNCOMPARABLE_PADDING = ("deberta-v2",)
"""Families whose padding attends to nothing in transformers: what is computed there means nothing, and differs."""


def comparable(family: str, attention_mask: Tensor) -> Tensor:
    """Return which tokens' outputs can be compared with transformers, bool [B, S]."""
    return attention_mask.bool() if family in UNCOMPARABLE_PADDING else torch.ones_like(attention_mask).bool()


def with_first_token(family: str, attention_mask: Tensor) -> Tensor:
    """Return the mask with the first token, whose outputs a classifier reads, if they cannot be compared without."""
    first = torch.arange(attention_mask.shape[1]) == 0
    return attention_mask.where(~first, 1) if family in UNCOMPARABLE_PADDING else attention_mask


def reference(family: str, architecture: str, **changes: Any) -> nn.Module:
    """Return a random transformers model in evaluation mode; `architecture` is its class name without the prefix."""
    torch.manual_seed(0)  # otherwise the weights depend on the tests before
    prefix, config, sizes = CONFIGS[family]
    model: nn.Module = getattr(transformers, prefix + architecture)(config(**{**sizes, **changes})).eval()
    randomize(model)
    return model
