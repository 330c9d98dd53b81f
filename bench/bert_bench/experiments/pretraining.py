"""Measure pre-training of a small model on books: every objective vs. chance, and vs. transformers' model and collator.

python -m bert_bench.experiments.pretraining --books FILE --work DIR --output DIR [--only NAME]...

All runs read the same documents, train on the same sequences in the same order for the same number of steps in
`bert_models`' loop, and are evaluated on the same held-out sequences with the same masks, those of `bert_models`.
Writes one JSON file per run into the output folder and prints them as a table. A run whose file is there is not
repeated; one that was interrupted is resumed. With `--base`, runs start from a checkpoint instead of new weights; their
files are called `NAME-continued`.

Made bench/results/pretraining.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch

from bert_bench.experiments.accuracy_vs_chance import auc_interval, replaced_token_accuracy, sentence_pair_accuracy
from bert_bench.experiments.book_corpus import book_corpus
from bert_bench.experiments.harness import path_option, write_result
from bert_bench.experiments.pretraining_runs import RUNS, NewModelSettings, continued_model, new_model
from bert_bench.reports.markdown_table import markdown_table
from bert_models.corpus import TextFiles
from bert_models.pretraining import PretrainSettings
from bert_models.pretraining.loop import fit
from bert_models.pretraining.model import ReplacedTokenModel
from bert_models.pretraining.module import Pretraining
from bert_models.training.lifecycle import resumed_precision
from bert_models.training.precision import ChosenPrecision
from bert_models.training.run_dir import LAST_NAME
from bert_runtime.machine import available_cores

__all__ = ["main", "results_table"]


def _train(
    name: str, text: TextFiles, work: Path, settings: PretrainSettings, new: NewModelSettings, base: Path | None
) -> dict[str, Any]:
    """Pre-train one run, or resume it, and return its result."""
    run, state = RUNS[name], work / (name if base is None else f"{name}-continued")
    torch.set_num_threads(available_cores())
    if base is None:
        model, config, data = new_model(run, text, work, settings, new)
        start = asdict(new)
    else:
        model, config, data = continued_model(base, text, work, settings)
        start = {"base": base.name, "dropout": "the checkpoint's"}
    described = {**settings.to_dict(), **run.described(), "corpus": data.corpus_key, **start}
    resume = (state / LAST_NAME).is_file()
    precision = resumed_precision(state, described) if resume else ChosenPrecision(settings.precision, {})
    module = Pretraining(model, data.train, data.dev, settings, precision.name, described)
    started = time.monotonic()
    fit(module, settings, precision, state, resume=resume)
    result = {
        "what": f"{name}: {'transformers model and collator' if run.transformers else 'ours'}, {run.objective}",
        "run": described,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocabulary": config.vocab_size,
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
    """Return the results in a folder as a Markdown table, one row per run of bert_models."""
    names = [variant for name in RUNS for variant in (name, f"{name}-continued")]
    found = {
        name: json.loads(path.read_text("utf-8")) for name in names if (path := results / f"{name}.json").is_file()
    }
    header = [
        "run",
        "MLM loss: bert-export",
        "transformers",
        "difference",
        "second objective: bert-export",
        "transformers",
        "chance",
    ]
    rows = [
        [name.replace("-", ", "), *_columns(result, found.get(f"{name}-transformers"))]
        for name, result in found.items()
        if name not in RUNS or not RUNS[name].transformers
    ]
    return markdown_table(header, rows)


def _columns(result: dict[str, Any], transformers: dict[str, Any] | None) -> list[str]:
    """Format a run of bert_models vs. the same run of transformers, if there is one."""
    loss = result["measured"][-1]["mlm_loss"]
    losses = [f"{loss:.3f}", "–", "–"]
    if transformers is not None:
        transformers_loss = transformers["measured"][-1]["mlm_loss"]
        losses[1:] = [f"{transformers_loss:.3f}", f"{loss / transformers_loss - 1:+.1%}"]
    accuracies = [run and run.get("against_chance") for run in (result, transformers)]
    chance = f"{accuracies[0]['chance']:.4f}" if accuracies[0] else "–"
    return [*losses, *map(_accuracy, accuracies), chance]


def _accuracy(accuracy: dict[str, float] | None) -> str:
    """Format an accuracy with half of its 95 % interval, and the area under the ROC curve if it was measured."""
    if not accuracy:
        return "–"
    auc = ""
    if "auc" in accuracy:
        original = accuracy["chance"] * accuracy["examples"]
        interval = auc_interval(accuracy["auc"], accuracy["examples"] - original, original)
        auc = f", AUC {accuracy['auc']:.3f} ± {interval:.3f}"
    return f"{accuracy['accuracy']:.4f} ± {accuracy['interval']:.4f}{auc}"


def _check_same_settings(path: Path, settings: PretrainSettings, new: NewModelSettings, base: Path | None) -> None:
    """Raise `ClickException` if the result file holds a run with other settings."""
    found = {**asdict(NewModelSettings()), **json.loads(path.read_text("utf-8"))["run"]}
    expected = settings.to_dict() | (asdict(new) if base is None else {"base": base.name})
    if found != {**found, **expected}:
        raise click.ClickException(f"{path}: holds a run with other settings; choose another --output and --work")


@click.command(help=__doc__)
@path_option("--books", "Text file, gzipped or not, one paragraph per line.")
@click.option(
    "--document-start", default="^# Title:", show_default=True, help="Regular expression of a document's first line."
)
@click.option("--paragraphs", is_flag=True, help="Take paragraphs as documents, and their sentences as lines.")
@path_option("--work", "Folder for tokenizers, tokens and training states.")
@path_option("--output", "Folder for the result files.")
@click.option("--only", multiple=True, type=click.Choice(list(RUNS)), help="Run to make. Default: all.")
@click.option("--steps", type=int, default=2000, show_default=True, help="Optimizer steps.")
@click.option("--batch-size", type=int, default=32, show_default=True, help="Sequences per step.")
@click.option("--max-tokens", type=int, default=128, show_default=True, help="Longest sequence, in tokens.")
@click.option("--lr", type=float, default=1e-3, show_default=True, help="Peak learning rate.")
@click.option("--eval-every", type=int, default=500, show_default=True, help="Steps between two evaluations.")
@click.option(
    "--dev-share", "dev_fraction", type=float, default=0.1, show_default=True, help="Fraction of tokens to hold out."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of weights, batches and masks.")
@click.option(
    "--precision", type=click.Choice(["fp32", "bf16"]), default="bf16", show_default=True, help="To train in."
)
@click.option(
    "--dropout", type=float, default=0.0, show_default=True, help="Of new models; 0, since no text is seen often."
)
@click.option(
    "--initializer-range", type=float, default=0.02, show_default=True, help="Standard deviation of new weights."
)
@click.option("--vocab-size", type=int, default=8192, show_default=True, help="Of the tokenizers trained on the text.")
@path_option("--base", "Checkpoint folder to start from instead of new weights.", required=False)
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
    """Make the runs one after another and print the table."""
    for folder in (work, output):
        folder.mkdir(parents=True, exist_ok=True)
    text = book_corpus(books, work, None if paragraphs else document_start)
    new = NewModelSettings(dropout=dropout, initializer_range=initializer_range, vocab_size=vocab_size)
    for name in only or RUNS:
        if base is not None and RUNS[name].transformers:
            raise click.ClickException(f"{name} cannot start from a checkpoint; leave out --base")
        path = output / f"{name}{'' if base is None else '-continued'}.json"
        settings = PretrainSettings(objective=RUNS[name].objective, **recipe)
        if path.is_file():
            _check_same_settings(path, settings, new, base)
        else:
            write_result(path, _train(name, text, work, settings, new, base))
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
