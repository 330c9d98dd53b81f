"""Log the metrics of a run: CSV and TensorBoard through Lightning's loggers, and a plot at the end."""

import shutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from bert_models.training.run_dir import LOGS_DIR

__all__ = ["PLOT_NAME", "build_loggers", "finish_logs", "plot_metrics"]

PLOT_NAME = "training.png"

Row = Mapping[str, float]
"""A row of `metrics.csv`: `step`, and metrics by name."""


def build_loggers(folder: Path) -> list[Logger]:
    """Return loggers that write to `folder`: `metrics.csv`, and TensorBoard's event file if that is installed."""
    loggers: list[Logger] = [CSVLogger(folder, name="", version="", flush_logs_every_n_steps=50)]
    if _has_tensorboard():
        loggers.append(TensorBoardLogger(folder, name="", version="", default_hp_metric=False))
    return loggers


def _has_tensorboard() -> bool:
    """Return whether TensorBoard can be imported: installed, and with a protobuf that it can use."""
    try:
        import_module("tensorboard")
        import_module("torch.utils.tensorboard")
    except ImportError:
        return False
    return True


def finish_logs(output: Path, folder: Path, rows: Sequence[Row], metrics: Sequence[str]) -> None:
    """Copy the logs of the run in `output` into `folder`, the finished checkpoint, and plot them there.

    `rows` are those of `TrainingModule.rows`, `metrics` the names of the dev metrics to plot.
    """
    if (output / LOGS_DIR).is_dir():  # somebody may have removed it; that must not lose the training
        shutil.copytree(output / LOGS_DIR, folder / LOGS_DIR)
    plot_metrics(folder / PLOT_NAME, rows, metrics)


def plot_metrics(path: Path, rows: Sequence[Row], metrics: Sequence[str]) -> None:
    """Plot the loss of every step and the dev metrics as a PNG; do nothing if matplotlib is missing.

    `rows` are those of `TrainingModule.rows`, `metrics` names without `dev_`.
    """
    try:
        from matplotlib.figure import Figure  # not pyplot, which chooses a GUI backend
    except ImportError:
        return

    figure = Figure(figsize=(7, 4), layout="constrained")
    loss_axes = figure.add_subplot()
    steps = [row for row in rows if "loss" in row]
    loss_axes.plot([row["step"] for row in steps], [row["loss"] for row in steps], color="tab:blue", linewidth=1)
    loss_axes.set_xlabel("step")
    loss_axes.set_ylabel("training loss", color="tab:blue")
    metric_axes = loss_axes.twinx()
    for metric, color in zip(metrics, ("tab:orange", "tab:green"), strict=False):
        points = [(row["step"], row[f"dev_{metric}"]) for row in rows if f"dev_{metric}" in row]
        metric_axes.plot(*zip(*points, strict=True), color=color, marker="o", label=metric)
    metric_axes.set_ylabel(f"dev {', '.join(metrics)}", color="tab:orange")
    if len(metrics) > 1:
        metric_axes.legend(loc="center right")
    figure.savefig(path, dpi=120)
