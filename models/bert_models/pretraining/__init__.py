"""The data side of pre-training: raw text to batches for masked language modelling and its companions."""

from bert_models.pretraining.corpus import Corpus, JsonlFiles, TextFiles, open_corpus
from bert_models.pretraining.library_datasets import LibraryDataset

__all__ = ["Corpus", "JsonlFiles", "LibraryDataset", "TextFiles", "open_corpus"]
