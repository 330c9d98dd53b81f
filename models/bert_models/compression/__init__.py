"""Model surgery: keep a subset of a model's layers, feed-forward neurons and token embeddings, chosen on data."""

from bert_models.compression.feed_forward import keep_neurons, most_important
from bert_models.compression.importance import layer_influence, neuron_importance
from bert_models.compression.layers import is_savable, keep_layers
from bert_models.compression.vocabulary import CutVocabulary, check_cuttable, cut_vocabulary, keep_embeddings, used_ids

__all__ = [
    "CutVocabulary",
    "check_cuttable",
    "cut_vocabulary",
    "is_savable",
    "keep_embeddings",
    "keep_layers",
    "keep_neurons",
    "layer_influence",
    "most_important",
    "neuron_importance",
    "used_ids",
]
