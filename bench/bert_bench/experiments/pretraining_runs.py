"""Runs of the pre-training experiment: their models, new or from a checkpoint, and their batches."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import lightning.pytorch as pl
from tokenizers import Tokenizer

from bert_bench.experiments.transformers_pretraining import CollatedBatches, TransformersPretraining
from bert_models.config import EncoderConfig
from bert_models.corpus import TextFiles
from bert_models.families import FAMILIES
from bert_models.families.bert import bert_size
from bert_models.pretraining import InitialModel, PretrainingBatches, PretrainSettings, split_documents, tokenize_corpus
from bert_models.pretraining.model import MaskedLanguageModel, PretrainingModel, ReplacedTokenModel
from bert_models.pretraining.vocabulary import PretrainingVocabulary
from bert_models.task_settings import read_mask_token
from bert_models.tokenizer_files import read_tokenizer, train_tokenizer
from bert_runtime.tasks import FillMask

__all__ = ["RUNS", "Data", "NewModelSettings", "Run", "continued_model", "new_model"]

_SIZE = bert_size(4, 256)
"""BERT's size `mini`, for every family."""


@dataclass(frozen=True)
class Run:
    """A model family, the objective to train it on, and whose model and collator to use."""

    family: str
    objective: str
    transformers: bool = False
    """Whether transformers' model and collator are trained instead of bert_models'."""

    @property
    def tokenizer_kind(self) -> str:
        """The kind of tokenizer that the family is pre-trained with."""
        return "bpe" if self.family == "roberta" else "wordpiece"

    def described(self) -> dict[str, Any]:
        """Return the fields by their keys in result files."""
        return {"family": self.family, "objective": self.objective, "theirs": self.transformers}


RUNS = {
    "mlm": Run("bert", "mlm"),
    "mlm-transformers": Run("bert", "mlm", transformers=True),
    "nsp": Run("bert", "mlm+nsp"),
    "nsp-transformers": Run("bert", "mlm+nsp", transformers=True),
    "sop": Run("bert", "mlm+sop"),
    "sop-transformers": Run("bert", "mlm+sop", transformers=True),
    "rtd": Run("electra", "rtd"),
    "roberta": Run("roberta", "mlm"),
    "roberta-transformers": Run("roberta", "mlm", transformers=True),
}


@dataclass(frozen=True, kw_only=True)
class NewModelSettings:
    """Settings of a model with new weights."""

    dropout: float = 0.0
    initializer_range: float = 0.02
    vocab_size: int = 8192


@dataclass(frozen=True)
class Data:
    """Batches of a run and what they were made with."""

    mask: FillMask
    train: PretrainingBatches
    dev: PretrainingBatches
    corpus_key: str
    """Name of the tokenized corpus."""


def _tokenize(
    text: TextFiles,
    tokenizer: Tokenizer,
    tokenizer_folder: Path,
    work: Path,
    settings: PretrainSettings,
    *,
    transformers: bool,
) -> Data:
    """Tokenize the text and split its documents into training and dev batches."""
    tokens, vocabulary = (
        tokenize_corpus(text, tokenizer, work / "tokens"),
        PretrainingVocabulary.from_tokenizer(tokenizer),
    )
    train_documents, dev_documents = split_documents(tokens.document_tokens, settings.dev_fraction, settings.seed)
    train = (
        CollatedBatches(tokenizer_folder, tokens, train_documents, vocabulary, settings.batch_settings())
        if transformers
        else PretrainingBatches(tokens, train_documents, vocabulary, settings.batch_settings())
    )
    dev = PretrainingBatches(tokens, dev_documents, vocabulary, settings.batch_settings())
    return Data(FillMask(**read_mask_token(tokenizer, tokenizer_folder)), train, dev, tokens.folder.name)


def new_model(
    run: Run, text: TextFiles, work: Path, settings: PretrainSettings, new: NewModelSettings
) -> tuple[PretrainingModel, EncoderConfig, Data]:
    """Train a tokenizer, unless it is there; return a model with new weights, its configuration and its batches."""
    folder = work / f"tokenizer-{run.tokenizer_kind}-{new.vocab_size}"
    if not folder.is_dir():
        train_tokenizer(text.paths, run.tokenizer_kind, new.vocab_size, folder, progress=click.echo)
    tokenizer = read_tokenizer(folder, run.family)
    vocabulary = PretrainingVocabulary.from_tokenizer(tokenizer)
    config = FAMILIES[run.family].preset(
        "base", **_SIZE, vocab_size=vocabulary.size, pad_token_id=vocabulary.pad_id,
        hidden_dropout=new.dropout, attention_dropout=new.dropout, initializer_range=new.initializer_range,
    )  # fmt: skip
    data = _tokenize(text, tokenizer, folder, work, settings, transformers=run.transformers)
    pl.seed_everything(settings.seed, verbose=False)
    model: PretrainingModel
    pairs = run.objective != "mlm"
    if run.transformers:
        model = TransformersPretraining(config, pairs=pairs)
    elif run.objective == "rtd":
        model = ReplacedTokenModel(config, data.mask)
    else:
        model = MaskedLanguageModel(config, data.mask, pairs=pairs)
    return model, config, data


def continued_model(
    base: Path, text: TextFiles, work: Path, settings: PretrainSettings
) -> tuple[PretrainingModel, EncoderConfig, Data]:
    """Return a checkpoint's model, its configuration and the batches of its tokenizer."""
    pl.seed_everything(settings.seed, verbose=False)
    opened = InitialModel(base=base).load(settings)
    data = _tokenize(text, opened.tokenizer, opened.tokenizer_from, work, settings, transformers=False)
    return opened.model, opened.model.config, data
