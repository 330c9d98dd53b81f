"""What compression is compared with: the first layers of the base checkpoint, fine-tuned on the labels alone."""

from pathlib import Path
from typing import Any

import click

from bert_bench.experiments.compression_data import TaskFiles, fine_tuned
from bert_export import export
from bert_export.compression.measuring import Reference, drop_to_json
from bert_models import load_model, open_checkpoint, save_model
from bert_models.compression import keep_layers
from bert_runtime.bundle.manifest import MANIFEST_NAME
from bert_runtime.evaluation import build_examples
from bert_runtime.records import read_records

__all__ = ["measure_by_hand"]


def measure_by_hand(
    name: str, base: Path, files: TaskFiles, folder: Path, num_layers: int, **recipe: Any
) -> dict[str, Any]:
    """Fine-tune the first layers of a checkpoint with the task's recipe; return their loss on the gate and their speed.

    Args:
        name: a key of `compression_data.TITLES`.
        base: checkpoint that the uncompressed one was fine-tuned from.
        files: the task's files.
        folder: folder of the search's output, whose uncompressed bundle is compared with; more is written beside it.
        num_layers: layers to keep.
        recipe: settings of the training in place of the task's.
    """
    work = folder / f"by-hand-{num_layers}"
    truncated, bundle = work / "base", work / "bundle"
    if not truncated.is_dir():
        source = open_checkpoint(base)
        model = keep_layers(load_model(source, source.task("sentence-embedding")), range(num_layers))
        truncated.mkdir(parents=True)
        save_model(model, truncated, tokenizer_from=source.path)
    click.echo(f"fine-tuning the first {num_layers} layers on labels alone")
    checkpoint = fine_tuned(name, truncated, files, work, **recipe)
    if not (bundle / MANIFEST_NAME).is_file():
        export(checkpoint, bundle, calibrate=files.train)
    records = {part: read_records(path) for part, path in (("dev", files.dev), ("test", files.test))}
    source = open_checkpoint(checkpoint)
    task = source.task()
    tokenizer = source.text_tokenizer(None, task.windows)
    dev, gate = (build_examples(task, tokenizer, records[part]) for part in ("dev", "test"))
    reference = Reference(folder / "small.search/uncompressed", [item for example in dev for item in example.inputs])
    return {
        "layers": num_layers,
        "gate": drop_to_json(reference.compare(bundle, gate)),
        "time": reference.time(bundle),
    }
