"""Baselines of compression: ways to a model of fewer layers that need no search.

`first_layers`: the first layers of the base checkpoint, fine-tuned on the labels alone. `distilbert`: evenly spaced
layers of the uncompressed model, distilled from it with DistilBERT's weights of the losses (Sanh et al.,
arXiv:1910.01108).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bert_bench.experiments.compression_data import TaskFiles, fine_tuned, recipe
from bert_export import export
from bert_export.compression.measuring import Reference, drop_to_json
from bert_models import load_model, open_checkpoint, save_model
from bert_models.compression import keep_layers
from bert_models.distillation import distill
from bert_models.distillation.settings import CORPUS_DISTILLATION
from bert_models.training import REPORT_NAME
from bert_runtime.bundle.manifest import MANIFEST_NAME
from bert_runtime.evaluation import build_examples
from bert_runtime.records import read_records

__all__ = ["measure_by_hand"]


def measure_by_hand(
    name: str, base: Path, files: TaskFiles, folder: Path, num_layers: int, **changes: Any
) -> dict[str, dict[str, Any]]:
    """Make models of as many layers as the compressed one has; return their loss on the gate and their speed, by way.

    Args:
        name: a key of `compression_data.TITLES`.
        base: checkpoint that the uncompressed one was fine-tuned from.
        files: the task's files.
        folder: folder of the search's output, whose uncompressed bundle is compared with; more is written beside it.
        num_layers: layers to keep.
        changes: settings of the training in place of the task's.
    """
    work = folder / f"by-hand-{num_layers}"
    click.echo(f"fine-tuning the first {num_layers} layers on labels alone")
    checkpoints = {
        "first_layers": fine_tuned(name, _first_layers(base, work / "base", num_layers), files, work, **changes)
    }
    click.echo(f"distilling {num_layers} evenly spaced layers with DistilBERT's losses")
    checkpoints["distilbert"] = _distilled(name, folder / "checkpoint", files, work / "distilbert", num_layers, changes)
    return {way: {"layers": num_layers, **_measured(path, files, folder)} for way, path in checkpoints.items()}


def _first_layers(base: Path, output: Path, num_layers: int) -> Path:
    if not output.is_dir():
        source = open_checkpoint(base)
        model = keep_layers(load_model(source, source.task("sentence-embedding")), range(num_layers))
        output.mkdir(parents=True)
        save_model(model, output, tokenizer_from=source.path)
    return output


def _distilled(
    name: str, teacher: Path, files: TaskFiles, output: Path, num_layers: int, changes: dict[str, Any]
) -> Path:
    if not (output / REPORT_NAME).is_file():
        losses = CORPUS_DISTILLATION
        if open_checkpoint(teacher).task().name == "sentence-embedding":  # no label says what a vector should be
            losses = replace(losses, hard_weight=0.0)
        settings = recipe(name, **changes)
        distill(
            str(teacher), str(num_layers), files.train, files.dev, output, settings, losses, force=True,
            progress=click.echo,
        )  # fmt: skip
    return output


def _measured(checkpoint: Path, files: TaskFiles, folder: Path) -> dict[str, Any]:
    """Export a checkpoint to INT8, and compare it with the uncompressed bundle."""
    bundle = checkpoint.with_name(f"{checkpoint.name}-bundle")
    if not (bundle / MANIFEST_NAME).is_file():
        export(checkpoint, bundle, calibrate=files.train)
    records = {part: read_records(path) for part, path in (("dev", files.dev), ("test", files.test))}
    source = open_checkpoint(checkpoint)
    task = source.task()
    tokenizer = source.text_tokenizer(None, task.windows)
    dev, gate = (build_examples(task, tokenizer, records[part]) for part in ("dev", "test"))
    reference = Reference(folder / "small.search/uncompressed", [item for example in dev for item in example.inputs])
    reference.tune_threshold(dev)
    return {"gate": drop_to_json(reference.compare(bundle, gate)), "time": reference.time(bundle)}
