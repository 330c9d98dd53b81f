"""Runs for one process or two, for test_distributed.py; as a script, two processes do those that are named.

Lightning starts `python distributed_runs.py FOLDER NAME…` again as the second process. Only the order of the data and
masks are random: dropout is off, and the generator replaces tokens by the likeliest ones.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from bert_models import FAMILIES, TrainingError
from bert_models.corpus import TextFiles
from bert_models.distillation import distill
from bert_models.pretraining import InitialModel, PretrainSettings, pretrain
from bert_models.training import Placement, TrainSettings, fine_tune
from bert_models.training.distributed.process_group import join_processes
from bert_models.training.module import FineTuning
from bert_runtime.errors import DataError

BATCH = 8
"""Batch size of all processes together."""

_SIZES = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 64, "max_positions": 64}
_NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "type_vocab_size": 2}


class KilledError(Exception):
    """Stands in for a kill."""


def patch_families(patch: pytest.MonkeyPatch) -> None:
    """Give families a size that trains in a second, without dropout, and make the generator deterministic."""
    for name, changes in (("bert", {}), ("albert", {"num_layer_groups": 1}), ("electra", {"embedding_size": 16})):
        sizes = {"toy": {**_SIZES, **_NO_DROPOUT, **changes}}
        patch.setitem(FAMILIES, name, replace(FAMILIES[name], sizes=sizes))
    patch.setattr("bert_models.pretraining.model.sample", lambda logits: logits.argmax(dim=-1))


def _batch_size(placement: Placement) -> int:
    """Return the batch size of one process."""
    assert placement.devices != "auto"
    return BATCH // (placement.devices or 1)


def tune(folder: Path, output: Path, placement: Placement, task: str = "text-classification", **options: Any) -> Any:
    """Fine-tune on 45 rows, which leave 5 for the last batch of an epoch."""
    kind = "conll" if task == "token-classification" else "csv"
    changes, task_settings = options.pop("settings", {}), options.pop("task_settings", None)
    values = {"epochs": 2, "batch_size": _batch_size(placement), "lr": 1e-3, "precision": "fp32"}
    settings = TrainSettings(**{**values, **changes})
    files = (folder / f"train.{kind}", folder / f"dev.{kind}")
    return fine_tune(
        task, folder / "base", *files, output, settings, task_settings=task_settings, placement=placement, **options
    )


def labels(folder: Path, output: Path, placement: Placement) -> Any:
    """Text classification with sorting by length and class weights, by which a process's part of a batch counts."""
    settings = {"class_weights": "balanced", "label_smoothing": 0.1, "sort_by_length": True}
    return tune(folder, output, placement, settings=settings)


def tokens(folder: Path, output: Path, placement: Placement) -> Any:
    """Token classification of 1 to 14 words: the processes' parts of a batch have different numbers of labels."""
    return tune(folder, output, placement, "token-classification", settings={"gradient_accumulation_steps": 2})


def crf(folder: Path, output: Path, placement: Placement) -> Any:
    """A CRF, whose parameters are used outside of the model's forward pass, and gradient checkpointing."""
    settings = {"gradient_checkpointing": True}
    return tune(folder, output, placement, "token-classification", task_settings={"crf": True}, settings=settings)


def distilled(folder: Path, output: Path, placement: Placement) -> Any:
    """Distillation on 45 rows in batches of 22, which leave one row for the last batch: one process has none."""
    assert placement.devices != "auto"
    settings = TrainSettings(epochs=2, batch_size=22 // (placement.devices or 1), lr=1e-3, precision="fp32")
    files = folder / "train.csv", folder / "dev.csv"
    return distill(folder / "base", "1", *files, output, settings, placement=placement)


def _pretrain(family: str, objective: str, accumulate: int = 1) -> Callable[[Path, Path, Placement], Any]:
    def run(folder: Path, output: Path, placement: Placement) -> Any:
        settings = PretrainSettings(
            objective=objective, steps=12, batch_size=_batch_size(placement), lr=1e-3, max_tokens=24,
            dev_fraction=0.2, eval_every=1, precision="fp32", gradient_accumulation_steps=accumulate,
        )  # fmt: skip
        source = InitialModel(family=family, size="toy", tokenizer=folder / "tokenizer")
        corpus = TextFiles([folder / "corpus.txt"])
        return pretrain(source, corpus, output, settings, cache=folder / "cache", placement=placement)

    return run


RUNS: dict[str, Callable[[Path, Path, Placement], Any]] = {
    "labels": labels,
    "tokens": tokens,
    "crf": crf,
    "distilled": distilled,
    "mlm+sop": _pretrain("albert", "mlm+sop", accumulate=2),
    "rtd": _pretrain("electra", "rtd"),
}
"""Functions of a folder, an output and a placement; the batch of all processes together is always the same."""

STRATEGIES = {"labels": "ddp", "tokens": "ddp", "crf": "fsdp", "distilled": "ddp", "mlm+sop": "fsdp", "rtd": "ddp"}


RESUMED: dict[str, tuple[str, str | None]] = {
    "parts-ddp": ("ddp", "ddp"),
    "parts-fsdp": ("fsdp", "fsdp"),
    "parts-ddp-fsdp": ("ddp", "fsdp"),
    "parts-fsdp-ddp": ("fsdp", "ddp"),
}
"""Strategies of runs until they are killed, and when they are resumed."""


def in_step(epoch: int, index: int, action: Callable[[FineTuning, Tensor], Tensor], patch: pytest.MonkeyPatch) -> None:
    """Let `action` change the loss of one step."""
    step = FineTuning.training_step

    def changed(self: FineTuning, batch: Any, number: int) -> Tensor:
        loss = step(self, batch, number)
        return action(self, loss) if (self.current_epoch, number) == (epoch, index) else loss

    patch.setattr(FineTuning, "training_step", changed)


def killed(module: FineTuning, loss: Tensor) -> Tensor:
    raise KilledError


def interrupted(folder: Path) -> None:
    """Kill runs in their second epoch; resume those of `RESUMED`, and leave `state` as it is."""
    for name, (strategy, next_strategy) in {**RESUMED, "state": ("ddp", None)}.items():
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KilledError):
            in_step(1, 1, killed, patch)
            tune(folder, folder / name, Placement(devices=2, strategy=strategy))
        if next_strategy is not None:
            tune(folder, folder / name, Placement(devices=2, strategy=next_strategy), resume=True)
    tune(folder, folder / "whole", Placement(devices=2))


def messages(folder: Path, placement: Placement) -> dict[str, Any]:
    """Return the errors that this process raises where only the second one fails, or only the first."""
    found: dict[str, Any] = {}
    with join_processes(placement) as process_group:
        with pytest.raises((DataError, TrainingError)) as data, process_group.sync_errors():
            if process_group.rank == 1:
                raise DataError("a file that only this machine has")
        found["data"] = str(data.value)
        with pytest.raises(TrainingError) as output:
            tune(folder, folder / "base", placement)  # a folder that no run has written; rank zero checks it
        found["output"] = str(output.value)
        found["turns"] = process_group.local_rank_zero_first(lambda: process_group.rank)
        found["threads"] = torch.get_num_threads()

        with pytest.MonkeyPatch.context() as patch:

            def nothing(self: Any, model: Any, outputs: Tensor, targets: Tensor) -> Tensor:
                return outputs.sum() * (float("nan") if process_group.rank == 1 else 1.0)

            patch.setattr("bert_models.training.objectives._SingleLabel.loss", nothing)
            with pytest.raises(TrainingError) as loss:
                tune(folder, folder / "nan", placement)
        found["loss"] = str(loss.value)
        found["rank"] = process_group.rank
    return found


def sharded_sizes(folder: Path, placement: Placement) -> dict[str, Any]:
    """Return the number of parameters in this process's shard, and of all parameters."""
    sizes: list[int] = []

    def look(module: FineTuning, loss: Tensor) -> Tensor:
        parameters = [p for p in module.model.encoder.layers.parameters() if isinstance(p, DTensor)]
        sizes.extend([sum(p.to_local().numel() for p in parameters), sum(p.numel() for p in parameters)])
        return loss

    with pytest.MonkeyPatch.context() as patch:
        in_step(0, 1, look, patch)
        tune(folder, folder / "sharded", placement)
    return {"sizes": sizes}


def main(folder: Path, names: Sequence[str]) -> None:
    """Do runs of `RUNS` and all others in two processes, each of which writes its results to its own file."""
    patch_families(pytest.MonkeyPatch())
    found: dict[str, Any] = {"reports": {}}
    for name in names:
        placement = Placement(devices=2, strategy=STRATEGIES[name])
        found["reports"][name] = RUNS[name](folder, folder / "two" / name, placement)
    found |= sharded_sizes(folder, Placement(devices=2, strategy="fsdp"))
    interrupted(folder)
    found |= messages(folder, Placement(devices=2))
    (folder / f"process{os.environ['LOCAL_RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
