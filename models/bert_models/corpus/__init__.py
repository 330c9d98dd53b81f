"""Raw text corpora for pre-training and tokenizer training, as streams of sentences with document boundaries."""

from bert_models.corpus.hugging_face_datasets import HuggingFaceDataset
from bert_models.corpus.sentences import Sentence
from bert_models.corpus.text_files import Corpus, JsonlFiles, TextFiles, open_corpus

__all__ = ["Corpus", "HuggingFaceDataset", "JsonlFiles", "Sentence", "TextFiles", "open_corpus"]
