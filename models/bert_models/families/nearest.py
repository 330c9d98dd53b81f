"""Architectures that are not supported: what each is, and the supported family that a user would take instead."""

from collections.abc import Mapping
from typing import Any

__all__ = ["NEAREST_FAMILY", "describe_unsupported"]

NEAREST_FAMILY: Mapping[str, str] = {
    other: family
    for family, others in {
        "bert": (
            "bert-generation", "canine", "fnet", "layoutlm", "layoutlmv2", "megatron-bert",
            "mobilebert", "nezha", "nystromformer", "rembert", "roc_bert",
            "roformer", "splinter", "squeezebert", "tapas",
        ),
        "roberta": (
            "big_bird", "data2vec-text", "ibert", "layoutlmv3", "longformer", "luke", "markuplm", "mra",
            "roberta-prelayernorm", "yoso",
        ),
        "xlm-roberta": (
            "lilt", "mluke", "xlm", "xlm-roberta-xl", "xmod",
        ),
        "modernbert": ("eurobert", "neobert", "neomme", "ultrabert"),
        "gte": ("jina_embeddings_v3",),
        "camembert": ("flaubert",),
        "electra": ("convbert", "funnel"),
        "mpnet": ("xlnet",),
        "deberta-v2": ("deberta",),
    }.items()
    for other in others
}  # fmt: skip
"""By `model_type`, the family with the same kind of vocabulary or objective. A judgement."""

_FAMILY_OF_POSITIONS: Mapping[str, str] = {
    "pos_att_type": "deberta-v2",
    "relative_attention_num_buckets": "mpnet",
    "rope_theta": "modernbert",
    "rope_parameters": "modernbert",
    "rotary_emb_base": "nomic_bert",
}
"""The family with the kind of positions that a key of `config.json` sets; BERT's are absolute."""

_DECODERS = frozenset(
    (
        "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "gpt_neo", "gpt_neox", "llama", "mistral",
        "mixtral", "modernbert-decoder", "opt", "phi3", "qwen2", "qwen3",
    )
)  # fmt: skip
"""Decoders that embedding models and rerankers are made of."""

_WITH_DECODER = frozenset(("bart", "mbart", "mt5", "mvp", "pegasus", "t5", "umt5"))
"""Encoders that have a decoder, too."""


def describe_unsupported(values: Mapping[str, Any]) -> str:
    """Return what a checkpoint of an unsupported `model_type` is and what to do instead, as the end of an error.

    Args:
        values: the contents of its `config.json`.

    Returns:
        Text that starts with `; `, or is empty if nothing is known.
    """
    name = values.get("model_type")
    if not isinstance(name, str):
        return ""
    if (family := NEAREST_FAMILY.get(name)) is not None:
        return f"; the nearest of these is {family}: train a checkpoint of that family"
    architectures = values.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    if name in _WITH_DECODER or values.get("is_encoder_decoder") is True:
        return "; it has an encoder and a decoder, and encoders alone are supported"
    if name in _DECODERS or any(str(architecture).endswith(("ForCausalLM", "LMHeadModel")) for architecture in names):
        return "; it is a decoder, and encoders alone are supported"
    if "vocab_size" not in values:  # of an unknown architecture, which need not read texts
        return ""
    family = next((family for key, family in _FAMILY_OF_POSITIONS.items() if key in values), "bert")
    return f"; by its positions, the nearest of these is {family}: train a checkpoint of that family"
