"""Measure token pruning on two classifications of long texts: what it saves, and what it loses.

python -m bert_bench.experiments.token_pruning --base CKPT --data DIR --work DIR --output FILE

Fine-tunes a checkpoint with all tokens, and distils it into a student of as many layers with a schedule of token
pruning. A third bundle prunes the model that was trained with all tokens. All are in INT8, answer the same test
passages, and are timed in turn. The checkpoints and bundles in WORK are not made again, so that `--prepare` can
make them before.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from bert_bench.experiments.harness import path_option, time_full_batch, time_interleaved, write_result
from bert_bench.experiments.long_texts import LONG_TEXTS
from bert_bench.reports.markdown_table import markdown_table
from bert_bench.timing_statistics import paired_speedup
from bert_export import export
from bert_export.calibration_texts import spread
from bert_export.paired_bootstrap import paired_drop
from bert_models import open_checkpoint
from bert_models.distillation import DistillationSettings, distill
from bert_models.training import REPORT_NAME, TrainSettings, fine_tune
from bert_runtime import Manifest, Model, load
from bert_runtime.evaluation import build_examples
from bert_runtime.records import read_records

__all__ = ["main", "results_table"]

_EPOCHS = {"books": 3, "articles": 6}
_SETTINGS: dict[str, Any] = {
    "lr": 2e-4, "batch_size": 8, "max_tokens": 256, "sort_by_length": True, "precision": "bf16", "dev_fraction": 0.06,
}  # fmt: skip
_DISTILLATION = DistillationSettings(hidden_weight=1.0)

_SHAPES = ((1, 128), (1, 256), (8, 128))
"""Sequences and tokens of the timed batches, which have no padding."""

_TIMED_TEXTS = 60
"""Test passages that are timed one after the other, tokenization included."""

_WHOLE, _DISTILLED, _UNTRAINED = "all tokens", "pruned, distilled", "pruned at export"


def results_table(result: Path) -> str:
    """Return the comparison of a result file as Markdown."""
    values = json.loads(result.read_text(encoding="utf-8"))
    rows = []
    for name, task in values["tasks"].items():
        speed = task["speed"]
        for model, found in task["models"].items():
            low, high = found.get("drop_percent_interval", (0, 0))
            timed = [f"{speed[key][model]['speedup']:.2f}×" for key in speed]
            loss = "" if model == _WHOLE else f"{found['drop_percent']:.2f} ({low:.2f} to {high:.2f})"
            rows.append([name, model, f"{found['accuracy']:.4f}", loss, *timed])
    keys = list(next(iter(values["tasks"].values()))["speed"])
    header = [
        "passages of",
        "INT8",
        "accuracy",
        "loss in % (95 % interval)",
        *(re.sub(r"(\d)x(\d)", r"\1×\2", key) for key in keys),
    ]
    return markdown_table(header, rows)


def _is_trained(checkpoint: Path, task: str) -> bool:
    """Return whether a checkpoint is there; raise `ClickException` if it was trained for other epochs."""
    report = checkpoint / REPORT_NAME
    if not report.exists():
        return False
    epochs = json.loads(report.read_text(encoding="utf-8"))["settings"]["epochs"]
    if epochs != _EPOCHS[task]:
        raise click.ClickException(
            f"{checkpoint}: trained for {epochs} epochs, expected {_EPOCHS[task]}; give another --work"
        )
    return True


def _fine_tuned(base: Path, folder: Path, task: str) -> Path:
    """Return the checkpoint that is trained with all tokens."""
    output = folder / "full"
    if not _is_trained(output, task):
        fine_tune(
            "text-classification", base, folder / "train.jsonl", None, output,
            TrainSettings(epochs=_EPOCHS[task], **_SETTINGS),
            resume=(output / "training").exists(), progress=click.echo,
        )  # fmt: skip
    return output


def _distilled(teacher: Path, folder: Path, task: str, schedule: str) -> Path:
    """Return the student of as many layers, which learns with the schedule what the teacher says with all tokens."""
    output = folder / "distilled"
    if not _is_trained(output, task):
        distill(
            teacher, str(open_checkpoint(teacher).config.num_layers), folder / "train.jsonl", None, output,
            TrainSettings(epochs=_EPOCHS[task], **_SETTINGS), _DISTILLATION,
            prune_tokens=schedule, resume=(output / "training").exists(), progress=click.echo,
        )  # fmt: skip
    return output


def _bundle(checkpoint: Path, bundle: Path, folder: Path, schedule: str | None) -> Model:
    """Return the INT8 model of a checkpoint's bundle, calibrated on training passages."""
    if not bundle.exists():
        export(checkpoint, bundle, prune_tokens=schedule, calibrate=folder / "train.jsonl", progress=click.echo)
    return load(bundle, precision="int8")


def _time(models: Mapping[str, Model], texts: list[str]) -> dict[str, dict[str, Any]]:
    """Return latency and speed-up over the first model by shape, and for passages one after the other."""
    runs = {name: model.session.run for name, model in models.items()}
    timed: dict[str, dict[str, Any]] = {}
    for sequences, tokens in _SHAPES:
        calls = max(2, 2000 // (sequences * tokens))
        timed[f"{sequences}x{tokens}"] = dict(time_full_batch(runs, sequences, tokens, rounds=9, calls=calls))
    answers = {name: partial(_answer_each, model, texts) for name, model in models.items()}
    timings = time_interleaved(answers, rounds=9, calls=1)
    baseline = next(iter(timings.values()))
    timed["test texts"] = {
        name: {
            "p50_ms": round(timing.p50_ms / len(texts), 4),
            "speedup": round(paired_speedup(timing, baseline).median, 3),
        }
        for name, timing in timings.items()
    }
    return timed


def _answer_each(model: Model, texts: list[str]) -> None:
    for text in texts:
        model(text)


def _models(base: Path, folder: Path, task: str, schedule: str) -> dict[str, Model]:
    """Train and export what is missing, and return the INT8 models."""
    whole = _fine_tuned(base, folder, task)
    distilled = _distilled(whole, folder, task, schedule)
    models = {
        _WHOLE: _bundle(whole, folder / "bundle-full", folder, None),
        _DISTILLED: _bundle(distilled, folder / "bundle-distilled", folder, None),
        _UNTRAINED: _bundle(whole, folder / "bundle-untrained", folder, schedule),
    }
    for name in ("bundle-distilled", "bundle-untrained"):
        made = Manifest.read(folder / name).extra.get("token_pruning")
        if made is None or made["schedule"] != schedule:
            raise click.ClickException(f"{folder / name}: made with {made}, asked for {schedule}; give another --work")
    return models


def _measure(models: Mapping[str, Model], folder: Path, task: str) -> dict[str, Any]:
    """Judge and time the models of one task."""
    reference, test = models[_WHOLE], folder / "test.jsonl"
    examples = build_examples(reference.task, reference.tokenizer, read_records(test))
    inputs = [item for example in examples for item in example.inputs]
    lengths = sorted(len(window) for windows in reference.tokenizer.encode(inputs) for window in windows)
    outputs = {name: model.outputs(inputs) for name, model in models.items()}
    judged: dict[str, dict[str, Any]] = {}
    for name, model in models.items():
        drop = paired_drop(model.task, outputs[name], reference.task, outputs[_WHOLE], examples)
        judged[name] = {
            "accuracy": drop.found, "accuracy_interval": [*asdict(drop.found_interval).values()],
            "drop_percent": drop.drop_percent, "drop_percent_interval": [*asdict(drop.drop_interval).values()],
        }  # fmt: skip
    return {
        "description": LONG_TEXTS[task].description,
        "test_rows": len(examples),
        "train_rows": len((folder / "train.jsonl").read_text(encoding="utf-8").splitlines()),
        "median_tokens": lengths[len(lengths) // 2],
        "epochs": _EPOCHS[task],
        "models": judged,
        "speed": _time(models, [item.text for item in spread(inputs, _TIMED_TEXTS)]),
    }


@click.command()
@path_option("--base", "Checkpoint to start from.")
@path_option("--data", "Folder of data sets.")
@path_option("--work", "Folder for data, checkpoints and bundles.")
@path_option("--output", "Result file.")
@click.option("--schedule", default="2:0.5,4:0.25", show_default=True, help="Schedule of token pruning.")
@click.option("--task", "tasks", type=click.Choice(list(LONG_TEXTS)), multiple=True, default=list(LONG_TEXTS))
@click.option("--prepare", is_flag=True, help="Train and export alone.")
def main(
    base: Path, data: Path, work: Path, output: Path, schedule: str, tasks: tuple[str, ...], *, prepare: bool
) -> None:
    """Compare pruned with unpruned models and write what was measured."""
    models = {}
    for task in tasks:
        (work / task).mkdir(parents=True, exist_ok=True)
        LONG_TEXTS[task].write(data, work / task)
        models[task] = _models(base, work / task, task, schedule)
    if prepare:
        return
    found = {task: _measure(models[task], work / task, task) for task in tasks}
    write_result(
        output, {"schedule": schedule, "settings": _SETTINGS, "distillation": asdict(_DISTILLATION), "tasks": found}
    )
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
