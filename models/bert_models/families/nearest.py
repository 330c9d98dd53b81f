"""Encoders of other architectures, and the supported family that a user would take instead."""

from collections.abc import Mapping

__all__ = ["NEAREST_FAMILY"]

NEAREST_FAMILY: Mapping[str, str] = {
    other: family
    for family, others in {
        "bert": ("ernie", "megatron-bert", "mobilebert", "modernbert", "new", "nomic_bert", "rembert", "squeezebert"),
        "roberta": ("big_bird", "data2vec-text", "deberta", "ibert", "longformer", "luke", "roberta-prelayernorm"),
        "xlm-roberta": ("deberta-v2", "mluke", "xlm", "xlm-roberta-xl", "xmod"),
        "camembert": ("flaubert",),
        "electra": ("convbert", "funnel"),
        "mpnet": ("xlnet",),
    }.items()
    for other in others
}
"""By `model_type`, the family with the same kind of vocabulary or objective. A judgement."""
