"""Pre-train a small model of a family, fine-tune it, and measure what INT8 costs either model.

python -m bert_bench.experiments.small_encoders --family FAMILY --books FILE --data DIR --work DIR --output FILE

No package index carries a checkpoint of these families, so that a small model is pre-trained: masked language
modelling on books, with a tokenizer trained on the same books. Two bundles are judged in FP32 and INT8: the masked
language model, calibrated on the built-in texts, on masked sequences of books that were held out; and a classifier that
is fine-tuned from it, calibrated on training rows, on the development rows. A checkpoint that is in the work folder
already is not trained again.

Sequences are longer than what the families treat token by token: ModernBERT's local layers read 16 tokens to either
side, and DeBERTa has 16 buckets of single distances.

Made bench/results/small-encoders.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import lightning.pytorch as pl
import numpy as np
import torch

from bert_bench.experiments.book_corpus import book_corpus
from bert_bench.experiments.data_sets import DATA_SETS
from bert_bench.experiments.fine_tuning import fine_tune_and_export
from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_export import export
from bert_models import FAMILIES
from bert_models.corpus import TextFiles
from bert_models.crf import IGNORE_INDEX
from bert_models.pretraining import (
    LoadedModel,
    MaskingSettings,
    ModelSource,
    PretrainingBatches,
    PretrainingVocabulary,
    PretrainSettings,
    pretrain,
    split_documents,
    tokenize_corpus,
)
from bert_models.pretraining.model import MaskedLanguageModel
from bert_models.task_settings import read_mask_token
from bert_models.tokenizer_files import read_tokenizer, train_tokenizer
from bert_models.training import REPORT_NAME
from bert_runtime import load
from bert_runtime.numerics import FloatArray, IntArray, softmax
from bert_runtime.records import read_records
from bert_runtime.tasks import FillMask, TextInput
from bert_runtime.tokenization import Batch

__all__ = ["FAMILY_SIZES", "SmallModel", "main", "results_table"]

_COMMON = {"num_layers": 4, "hidden_size": 256, "num_heads": 4, "max_positions": 512}

FAMILY_SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "modernbert": ("bpe", {**_COMMON, "intermediate_size": 384, "local_layers": (1, 2), "sliding_window": 16}),
    "deberta-v2": ("unigram", {**_COMMON, "intermediate_size": 1024, "position_buckets": 32}),
}
"""By family, the kind of its tokenizer, and fields of its configuration that differ from those of `base`."""

_MLM_PROBABILITY = 0.3
"""Fraction of the tokens that are predicted: ModernBERT's."""

_PRECISIONS = ("fp32", "int8")

_DEV_SEQUENCES = 256
"""Held-out sequences on which bundles fill masks."""


@dataclass(frozen=True, kw_only=True)
class SmallModel(ModelSource):
    """A model of `FAMILY_SIZES` with new weights."""

    family: str
    tokenizer: Path
    """Folder of the tokenizer's files."""

    def load(self, settings: PretrainSettings) -> LoadedModel:
        tokenizer = read_tokenizer(self.tokenizer, self.family)
        vocabulary = PretrainingVocabulary.from_tokenizer(tokenizer)
        _, sizes = FAMILY_SIZES[self.family]
        config = FAMILIES[self.family].preset(
            "base", **sizes, vocab_size=vocabulary.size, pad_token_id=vocabulary.pad_id,
            hidden_dropout=0.0, attention_dropout=0.0,
        )  # fmt: skip
        mask = FillMask(**read_mask_token(tokenizer, self.tokenizer))
        return LoadedModel(self.tokenizer, MaskedLanguageModel(config, mask, pairs=False), tokenizer)

    def describe(self) -> dict[str, Any]:
        return {key: str(value) for key, value in asdict(self).items()}


def _dev_batches(source: SmallModel, corpus: TextFiles, settings: PretrainSettings, cache: Path) -> PretrainingBatches:
    """Return the batches of the documents that `pretrain` holds out."""
    tokenizer = read_tokenizer(source.tokenizer, source.family)
    tokens = tokenize_corpus(corpus, tokenizer, cache)
    _, documents = split_documents(tokens.document_tokens, settings.dev_fraction, settings.seed)
    vocabulary = PretrainingVocabulary.from_tokenizer(tokenizer)
    return PretrainingBatches(tokens, documents, vocabulary, settings.batch_settings())


def _untrained_metrics(source: SmallModel, batches: PretrainingBatches, settings: PretrainSettings) -> dict[str, float]:
    """Return loss and accuracy of the weights that training starts with, on the batches it is evaluated on."""
    pl.seed_everything(settings.seed, verbose=False)
    model = source.load(settings).model.eval()
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    with torch.inference_mode():
        for batch in map(batches.__getitem__, range(len(batches))):
            measured = model.measure(*batch[:4], torch.zeros(len(batch.input_ids), dtype=torch.int64))
            for name, metric in measured.items():
                sums[name][0] += float(metric.total)
                sums[name][1] += float(metric.num_items)
    return {name: total / items for name, (total, items) in sums.items()}


def _masked_batches(batches: PretrainingBatches) -> Iterator[tuple[Batch, IntArray]]:
    """Yield batches of which every predicted token is a mask, and the original tokens of the masks, int64 [masks]."""
    masking = MaskingSettings(mlm_probability=_MLM_PROBABILITY, mask_replace_prob=1.0, random_replace_prob=0.0)
    masked = PretrainingBatches(
        batches.cache, batches.documents, batches.vocabulary, replace(batches.settings, masking=masking)
    )
    for index in range(min(len(masked), _DEV_SEQUENCES // batches.settings.batch_size)):
        ids, mask, types, labels, *_ = masked[index]
        yield Batch(ids.numpy(), mask.numpy(), types.numpy()), labels[labels != IGNORE_INDEX].numpy()


def _fill_masks(bundle: Path, batches: PretrainingBatches) -> dict[str, Any]:
    """Return loss and accuracy at masks of a bundle's FP32 and INT8 graphs, and how far these differ."""
    inputs, labels = zip(*_masked_batches(batches), strict=True)
    original = np.concatenate(labels)
    logits: dict[str, FloatArray] = {}
    for precision in _PRECISIONS:
        model = load(bundle, precision=precision)
        logits[precision] = np.concatenate([model.run(batch) for batch in inputs])
    found: dict[str, Any] = {"masks": len(original), "tokens": batches.settings.max_tokens}
    for precision, scores in logits.items():
        probability = softmax(scores.astype(np.float64))[np.arange(len(original)), original]
        found[precision] = {
            "mlm_loss": float(-np.log(probability).mean()),
            "mlm_accuracy": float((scores.argmax(axis=-1) == original).mean()),
        }
    drift = np.abs(logits["int8"] - logits["fp32"])
    same = logits["int8"].argmax(axis=-1) == logits["fp32"].argmax(axis=-1)
    return {
        **found,
        "token_agreement": float(same.mean()),
        "mean_abs_logit_drift": float(drift.mean()),
        "max_abs_logit_drift": float(drift.max()),
        "logit_standard_deviation": float(logits["fp32"].std()),
    }


def _pretrain(source: SmallModel, corpus: TextFiles, work: Path, settings: PretrainSettings) -> dict[str, Any]:
    """Pre-train into `work/pretrained`, unless that was done; export, and return the report with what bundles lose."""
    checkpoint, cache = work / "pretrained", work / "tokens"
    if not (checkpoint / REPORT_NAME).is_file():
        pretrain(source, corpus, checkpoint, settings, cache=cache, force=True, progress=click.echo)
    report = json.loads((checkpoint / REPORT_NAME).read_text(encoding="utf-8"))
    dev = _dev_batches(source, corpus, settings, cache)
    bundle = work / "fill-mask"
    export(checkpoint, bundle, task="fill-mask", force=True, progress=click.echo)
    kept = ("settings", "precision", "seconds", "corpus", "parameters", "measured")
    return {
        **{key: report[key] for key in kept},
        "untrained": _untrained_metrics(source, dev, settings),
        "bundle": _fill_masks(bundle, dev),
    }


def _token_counts(bundle: Path, texts: Path) -> dict[str, float]:
    """Return the median and the maximum number of tokens of a file's texts."""
    tokenizer = load(bundle).tokenizer
    inputs = [TextInput(record.text()) for record in read_records(texts)]
    counts = [len(windows[0].ids) for windows in tokenizer.encode(inputs)]
    return {"median": float(np.median(counts)), "max": max(counts)}


def results_table(results: Path) -> str:
    """Return the results in a folder as Markdown tables: how models were pre-trained, and what INT8 costs them."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"), reverse=True)]
    pretrained = markdown_table(
        ("pre-trained", "parameters, M", "tokens, M", "minutes", "held-out loss", "held-out accuracy"),
        [_pretraining_row(result) for result in found],
    )
    judged = markdown_table(
        ("", "FP32", "INT8", "same prediction", "mean drift of a logit", "largest"),
        [row for result in found for row in _judged_rows(result)],
    )
    return f"{pretrained}\n\n{judged}"


def _pretraining_row(result: dict[str, Any]) -> list[str]:
    run = result["pretraining"]
    settings, before, after = run["settings"], run["untrained"], run["measured"][-1]
    tokens = settings["steps"] * settings["batch_size"] * settings["max_tokens"]
    return [
        result["family"], f"{run['parameters'] / 1e6:.1f}", f"{tokens / 1e6:.1f}", f"{run['seconds'] / 60:.1f}",
        f"{before['mlm_loss']:.2f} → {after['mlm_loss']:.2f}",
        f"{before['mlm_accuracy']:.1%} → {after['mlm_accuracy']:.1%}",
    ]  # fmt: skip


def _judged_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return rows of loss and accuracy at masks, and of the metric of the data set, in FP32 and INT8."""
    name, masked, tuned = result["family"], result["pretraining"]["bundle"], result["fine_tuning"]
    losses = [f"{masked[precision]['mlm_loss']:.4f}" for precision in _PRECISIONS]
    accuracies = [f"{masked[precision]['mlm_accuracy']:.2%}" for precision in _PRECISIONS]
    scores = [f"{tuned['metrics'][precision][tuned['metric']]:.2%}" for precision in _PRECISIONS]
    return [
        [f"{name}, loss at {masked['masks']:,} masks", *losses, *_drift(masked, "token_agreement")],
        [f"{name}, accuracy at masks", *accuracies, "", "", ""],
        [f"{name}, {tuned['metric']} on {result['data_set']}", *scores,
         *_drift(tuned["int8_drift"], "label_agreement")],
    ]  # fmt: skip


def _drift(measured: dict[str, float], agreement: str) -> list[str]:
    drifts = [f"{measured[f'{kind}_abs_logit_drift']:.3f}" for kind in ("mean", "max")]
    return [f"{measured[agreement]:.2%}", *drifts]


@click.command(help=__doc__)
@click.option("--family", type=click.Choice(list(FAMILY_SIZES)), required=True)
@path_option("--books", "Text file of books, gzipped or not, one paragraph per line.")
@path_option("--data", "Folder with the data sets' files.")
@path_option("--work", "Folder for tokenizers, tokens, checkpoints and bundles.")
@path_option("--output", "Result file to write.")
@click.option("--data-set", type=click.Choice(["sst2", "banking77"]), default="sst2", show_default=True)
@click.option("--vocab-size", type=int, default=4096, show_default=True)
@click.option("--steps", type=int, default=500, show_default=True, help="Steps of pre-training.")
@click.option("--batch-size", type=int, default=32, show_default=True, help="Sequences per step of pre-training.")
@click.option("--max-tokens", type=int, default=128, show_default=True, help="Tokens per sequence of pre-training.")
@click.option("--lr", type=float, default=2e-3, show_default=True, help="Peak learning rate of pre-training.")
@click.option("--fine-tuning-lr", type=float, default=5e-4, show_default=True, help="That of fine-tuning.")
@click.option("--epochs", type=int, default=2, show_default=True, help="Epochs of fine-tuning.")
def main(
    family: str, books: Path, data: Path, work: Path, output: Path, data_set: str, vocab_size: int,
    fine_tuning_lr: float, epochs: int, **recipe: Any,
) -> None:  # fmt: skip
    """Pre-train, fine-tune, export and judge."""
    folder = work / family
    folder.mkdir(parents=True, exist_ok=True)
    corpus, kind = book_corpus(books, work, "^# Title:"), FAMILY_SIZES[family][0]
    tokenizer = work / f"tokenizer-{kind}-{vocab_size}"
    if not tokenizer.is_dir():
        train_tokenizer([work / "books.txt"], kind, vocab_size, tokenizer, progress=click.echo)
    settings = PretrainSettings(
        precision="bf16", dev_fraction=0.03, mlm_probability=_MLM_PROBABILITY,
        eval_every=max(1, recipe["steps"] // 2), **recipe,
    )  # fmt: skip
    pretraining = _pretrain(SmallModel(family=family, tokenizer=tokenizer), corpus, folder, settings)
    chosen = DATA_SETS[data_set]
    chosen = replace(chosen, settings=replace(chosen.settings, lr=fine_tuning_lr, epochs=epochs, precision="bf16"))
    fine_tuning = fine_tune_and_export(chosen, folder / "pretrained", data, folder / data_set)
    tokens = _token_counts(folder / data_set / "bundle", folder / data_set / "dev.jsonl")
    result = {"family": family, "size": FAMILY_SIZES[family][1], "pretraining": pretraining, "data_set": data_set,
              "tokens": tokens, "fine_tuning": fine_tuning}  # fmt: skip
    write_result(output, result)
    click.echo(json.dumps({"tokens": tokens, "bundle": pretraining["bundle"], **fine_tuning}, indent=1))


if __name__ == "__main__":
    main()
