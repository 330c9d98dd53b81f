"""Pre-training a small model on books: every objective against chance, and against transformers' model and collator.

python -m bert_bench.experiments.pretraining --books FILE --work DIR --output DIR [--only NAME]...

All runs read the same documents, see the same sequences in the same order for the same number of steps in one loop, and
are measured on the same held-out sequences with the same masks, which are ours. Writes one JSON file per run into the
output folder; a run that is there is not made again, one that was interrupted goes on. With `--base`, our runs start
from a checkpoint instead of new weights, and their files are called `NAME-continued`.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import lightning.pytorch as pl
import torch

from bert_bench.experiments.accuracy_vs_chance import auc_interval, replaced_token_accuracy, sentence_pair_accuracy
from bert_bench.experiments.book_corpus import book_corpus
from bert_bench.experiments.harness import write_result
from bert_bench.experiments.transformers_pretraining import CollatedBatches, TransformersPretraining
from bert_models.config import EncoderConfig
from bert_models.corpus import TextFiles
from bert_models.families import FAMILIES
from bert_models.families.bert import width
from bert_models.pretraining import InitialModel, PretrainingBatches, PretrainSettings, split_documents, tokenize_corpus
from bert_models.pretraining.model import MaskedLanguageModel, PretrainingModel, ReplacedTokenModel
from bert_models.pretraining.module import Pretraining
from bert_models.pretraining.run import fit
from bert_models.pretraining.vocabulary import PretrainingVocabulary
from bert_models.task_settings import read_mask_token
from bert_models.tokenizer_files import read_tokenizer, train_tokenizer
from bert_models.training.loop import resumed_precision
from bert_models.training.precision import ChosenPrecision
from bert_models.training.run_dir import LAST_NAME
from bert_runtime.machine import available_cores
from bert_runtime.tasks import FillMask

__all__ = ["RUNS", "Run", "main", "results_table"]

_SIZE = width(4, 256)
"""What BERT has as its size `mini`, for every family."""


@dataclass(frozen=True)
class Run:
    """What is trained on which objective; `theirs` are transformers' model and collator."""

    family: str
    objective: str
    theirs: bool = False

    @property
    def kind(self) -> str:
        """The tokenizer that the family is pre-trained with."""
        return "bpe" if self.family == "roberta" else "wordpiece"


RUNS = {
    "mlm": Run("bert", "mlm"),
    "mlm-transformers": Run("bert", "mlm", theirs=True),
    "nsp": Run("bert", "mlm+nsp"),
    "nsp-transformers": Run("bert", "mlm+nsp", theirs=True),
    "sop": Run("bert", "mlm+sop"),
    "sop-transformers": Run("bert", "mlm+sop", theirs=True),
    "rtd": Run("electra", "rtd"),
    "roberta": Run("roberta", "mlm"),
    "roberta-transformers": Run("roberta", "mlm", theirs=True),
}


@dataclass(frozen=True, kw_only=True)
class _New:
    """What is chosen for a model of new weights."""

    dropout: float = 0.0
    initializer_range: float = 0.02
    vocab_size: int = 8192


@dataclass(frozen=True)
class _Data:
    """The batches of a run, and the folder of its tokenizer."""

    tokenizer: Path
    config: EncoderConfig
    mask: FillMask
    train: PretrainingBatches
    dev: PretrainingBatches
    key: str
    """The name of the tokenized corpus."""


def _data(run: Run, text: TextFiles, work: Path, settings: PretrainSettings, new: _New) -> _Data:
    folder = work / f"tokenizer-{run.kind}-{new.vocab_size}"
    if not folder.is_dir():
        train_tokenizer(text.paths, run.kind, new.vocab_size, folder, progress=click.echo)
    tokenizer = read_tokenizer(folder, run.family)
    vocabulary = PretrainingVocabulary.from_tokenizer(tokenizer)
    config = FAMILIES[run.family].preset(
        "base", **_SIZE, vocab_size=vocabulary.size, pad_token_id=vocabulary.pad_id,
        hidden_dropout=new.dropout, attention_dropout=new.dropout, initializer_range=new.initializer_range,
    )  # fmt: skip
    tokens = tokenize_corpus(text, tokenizer, work / "tokens")
    train, dev = split_documents(tokens.num_documents, settings.dev_fraction, settings.seed)
    ours = PretrainingBatches(tokens, train, vocabulary, settings.batch_settings())
    theirs = CollatedBatches(folder, tokens, train, vocabulary, settings.batch_settings())
    held_out = PretrainingBatches(tokens, dev, vocabulary, settings.batch_settings())
    mask = FillMask(**read_mask_token(tokenizer, folder))
    return _Data(folder, config, mask, theirs if run.theirs else ours, held_out, tokens.folder.name)


def _model(run: Run, data: _Data) -> PretrainingModel:
    pairs = run.objective != "mlm"
    if run.theirs:
        return TransformersPretraining(data.config, pairs=pairs)
    if run.objective == "rtd":
        return ReplacedTokenModel(data.config, data.mask)
    return MaskedLanguageModel(data.config, data.mask, pairs=pairs)


def _continued(base: Path, text: TextFiles, work: Path, settings: PretrainSettings) -> tuple[PretrainingModel, _Data]:
    """A checkpoint's model, and the batches that its tokenizer makes."""
    opened = InitialModel(base=base).open(settings)
    vocabulary, batches = PretrainingVocabulary.from_tokenizer(opened.tokenizer), settings.batch_settings()
    tokens = tokenize_corpus(text, opened.tokenizer, work / "tokens")
    train, dev = (
        PretrainingBatches(tokens, documents, vocabulary, batches)
        for documents in split_documents(tokens.num_documents, settings.dev_fraction, settings.seed)
    )
    mask = FillMask(**read_mask_token(opened.tokenizer, opened.tokenizer_from))
    return opened.model, _Data(opened.tokenizer_from, opened.model.config, mask, train, dev, tokens.folder.name)


def _train(
    name: str,
    text: TextFiles,
    work: Path,
    settings: PretrainSettings,
    new: _New,
    base: Path | None,
) -> dict[str, Any]:
    """One run from text to result."""
    run, state = RUNS[name], work / (name if base is None else f"{name}-continued")
    torch.set_num_threads(available_cores())
    if base is None:
        data = _data(run, text, work, settings, new)
        pl.seed_everything(settings.seed, verbose=False)
        model = _model(run, data)
    else:
        pl.seed_everything(settings.seed, verbose=False)
        model, data = _continued(base, text, work, settings)
    described = {**settings.to_dict(), **asdict(run), "corpus": data.key}
    described |= asdict(new) if base is None else {"base": base.name, "dropout": "the checkpoint's"}
    resume = (state / LAST_NAME).is_file()
    precision = resumed_precision(state, described) if resume else ChosenPrecision(settings.precision, {})
    module = Pretraining(model, data.train, data.dev, settings, precision.name, described)
    started = time.monotonic()
    fit(module, settings, precision, state, resume=resume)
    result = {
        "what": f"{name}: {'transformers model and collator' if run.theirs else 'ours'}, {run.objective}",
        "run": described,
        "parameters": sum(each.numel() for each in model.parameters()),
        "vocabulary": data.config.vocab_size,
        "documents": {"train": len(data.train.documents), "dev": len(data.dev.documents)},
        "dev_sequences": data.dev.num_sequences,
        "measured": module.history,
        "seconds": None if resume else round(time.monotonic() - started, 1),
    }
    last = module.history[-1]
    if "sentence_accuracy" in last:
        result["against_chance"] = sentence_pair_accuracy(last["sentence_accuracy"], data.dev)
    if isinstance(model, ReplacedTokenModel):
        result["against_chance"] = replaced_token_accuracy(model, data.dev, settings)
    return result


def results_table(results: Path) -> str:
    """The results as a Markdown table, a row per objective."""
    names = [each for name in RUNS for each in (name, f"{name}-continued")]
    found = {
        name: json.loads(path.read_text("utf-8")) for name in names if (path := results / f"{name}.json").is_file()
    }
    lines = [
        "| run | MLM loss: ours | transformers | difference | second objective: ours | transformers | chance |",
        "|---" * 7 + "|",
    ]
    for name in found:
        if name in RUNS and RUNS[name].theirs:
            continue
        ours, theirs = found[name], found.get(f"{name}-transformers")
        loss = ours["measured"][-1]["mlm_loss"]
        columns = [f"{loss:.3f}", "–", "–"]
        if theirs is not None:
            other = theirs["measured"][-1]["mlm_loss"]
            columns[1:] = [f"{other:.3f}", f"{loss / other - 1:+.1%}"]
        chances = [each and each.get("against_chance") for each in (ours, theirs)]
        columns += [_accuracy(each) for each in chances]
        columns.append(f"{chances[0]['chance']:.4f}" if chances[0] else "–")
        lines.append(f"| {name.replace('-', ', ')} | {' | '.join(columns)} |")
    return "\n".join(lines)


def _accuracy(found: dict[str, float] | None) -> str:
    """With half of its 95 % interval, and the area under the curve where that was measured."""
    if not found:
        return "–"
    area = ""
    if "auc" in found:
        original = found["chance"] * found["examples"]
        area = f", AUC {found['auc']:.3f} ± {auc_interval(found['auc'], found['examples'] - original, original):.3f}"
    return f"{found['accuracy']:.4f} ± {found['interval']:.4f}{area}"


@click.command(help=__doc__)
@click.option("--books", type=click.Path(path_type=Path), required=True, help="Text file, .gz or not.")
@click.option("--document-start", default="^# Title:", show_default=True, help="What its documents start with.")
@click.option("--paragraphs", is_flag=True, help="Paragraphs are documents instead, and sentences lines.")
@click.option("--work", type=click.Path(path_type=Path), required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--only", multiple=True, type=click.Choice(list(RUNS)))
@click.option("--steps", type=int, default=2000, show_default=True)
@click.option("--batch-size", type=int, default=32, show_default=True)
@click.option("--max-tokens", type=int, default=128, show_default=True)
@click.option("--lr", type=float, default=1e-3, show_default=True)
@click.option("--eval-every", type=int, default=500, show_default=True)
@click.option("--dev-share", type=float, default=0.1, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="bf16", show_default=True)
@click.option("--dropout", type=float, default=0.0, show_default=True, help="None, since no text is seen often.")
@click.option("--initializer-range", type=float, default=0.02, show_default=True, help="Of new weights.")
@click.option("--vocab-size", type=int, default=8192, show_default=True, help="Of a tokenizer trained on the text.")
@click.option("--base", type=click.Path(path_type=Path), help="Checkpoint that our runs go on from.")
def main(
    books: Path,
    document_start: str,
    paragraphs: bool,
    work: Path,
    output: Path,
    only: tuple[str, ...],
    dropout: float,
    initializer_range: float,
    vocab_size: int,
    base: Path | None,
    **recipe: Any,
) -> None:
    """Makes the runs, one after another."""
    for folder in (work, output):
        folder.mkdir(parents=True, exist_ok=True)
    text = book_corpus(books, work, None if paragraphs else document_start)
    new = _New(dropout=dropout, initializer_range=initializer_range, vocab_size=vocab_size)
    for name in only or RUNS:
        if base is not None and RUNS[name].theirs:
            raise click.ClickException(f"{name} cannot go on from a checkpoint; leave out --base")
        path = output / f"{name}{'' if base is None else '-continued'}.json"
        settings = PretrainSettings(objective=RUNS[name].objective, **recipe)
        if not path.is_file():
            write_result(path, _train(name, text, work, settings, new, base))
        elif (before := {**asdict(_New()), **json.loads(path.read_text("utf-8"))["run"]}) != {
            **before,
            **settings.to_dict(),
            **(asdict(new) if base is None else {"base": base.name}),
        }:
            raise click.ClickException(
                f"{path}: a run with other settings is there; choose another --output and --work"
            )
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
