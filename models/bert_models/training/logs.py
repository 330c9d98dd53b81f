"""What a run writes about itself while it trains: Lightning's loggers, and a plot at the end."""

import shutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from bert_models.training.run_dir import LOGS_DIR

__all__ = ["PLOT_NAME", "LoggedModule", "build_loggers", "draw", "finish_logs"]

PLOT_NAME = "training.png"

Row = Mapping[str, float]


class LoggedModule(pl.LightningModule):
    """A module that keeps what it logs: a resumed run, whose logs begin anew, writes it once more."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []
        """What was logged, each with its `step`: `loss` and `lr` of the optimizer's steps, `dev_…` of measurements."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the rows."""
        checkpoint["rows"] = self.rows

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The inverse of `on_save_checkpoint`; writes once more what had been logged, also where no step is left."""
        self.rows = checkpoint["rows"]
        for logger in self.loggers:
            for row in self.rows:
                logger.log_metrics({name: value for name, value in row.items() if name != "step"}, int(row["step"]))

    def log_row(self, values: dict[str, float]) -> None:
        """Logs `values` of the current step."""
        self.rows.append({"step": self.global_step, **values})
        for logger in self.loggers:
            logger.log_metrics(values, self.global_step)

    def log_dev_metrics(self, metrics: Mapping[str, float]) -> None:
        """Shows and logs what was measured as `dev_…`; a process that is killed afterwards leaves all rows so far."""
        dev = {f"dev_{name}": value for name, value in metrics.items()}
        self.log_dict(dev, prog_bar=True, logger=False)
        self.log_row(dev)
        for logger in self.loggers:
            logger.save()


def build_loggers(folder: Path) -> list[Logger]:
    """`metrics.csv` in `folder`, and the event file of TensorBoard where that is installed."""
    loggers: list[Logger] = [CSVLogger(folder, name="", version="", flush_logs_every_n_steps=50)]
    if _has_tensorboard():
        loggers.append(TensorBoardLogger(folder, name="", version="", default_hp_metric=False))
    return loggers


def _has_tensorboard() -> bool:
    """Whether it can be imported, and not only found: with a protobuf that it cannot use it is no help."""
    try:
        import_module("tensorboard")
        import_module("torch.utils.tensorboard")
    except ImportError:
        return False
    return True


def finish_logs(target: Path, building: Path, rows: Sequence[Row], metrics: Sequence[str]) -> None:
    """Copies the logs of the run in `target` into the checkpoint that is being built, and draws its plot there."""
    if (target / LOGS_DIR).is_dir():  # not removed by somebody meanwhile, for which no training is to be lost
        shutil.copytree(target / LOGS_DIR, building / LOGS_DIR)
    draw(building / PLOT_NAME, rows, metrics)


def draw(path: Path, rows: Sequence[Row], metrics: Sequence[str]) -> None:
    """Draws the loss of every step and the dev metrics as a PNG; nothing where matplotlib is missing.

    `rows` are those of `LoggedModule.rows`.
    """
    try:
        from matplotlib.figure import Figure  # without pyplot, which would choose a window system
    except ImportError:
        return

    figure = Figure(figsize=(7, 4), layout="constrained")
    losses = figure.add_subplot()
    steps = [row for row in rows if "loss" in row]
    losses.plot([row["step"] for row in steps], [row["loss"] for row in steps], color="tab:blue", linewidth=1)
    losses.set_xlabel("step")
    losses.set_ylabel("training loss", color="tab:blue")
    measured = losses.twinx()
    for metric, colour in zip(metrics, ("tab:orange", "tab:green"), strict=False):
        points = [(row["step"], row[f"dev_{metric}"]) for row in rows if f"dev_{metric}" in row]
        measured.plot(*zip(*points, strict=True), color=colour, marker="o", label=metric)
    measured.set_ylabel(f"dev {', '.join(metrics)}", color="tab:orange")
    if len(metrics) > 1:
        measured.legend(loc="center right")
    figure.savefig(path, dpi=120)
