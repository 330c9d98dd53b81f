"""What a run writes about itself while it trains: Lightning's loggers, and a plot at the end."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

__all__ = ["PLOT_NAME", "build_loggers", "draw"]

PLOT_NAME = "training.png"

Row = Mapping[str, float]


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


def draw(path: Path, rows: Sequence[Row], metric: str) -> None:
    """Draws the loss of every step and the dev metric of every epoch as a PNG; nothing where matplotlib is missing.

    `rows` are those of `FineTuning.rows`.
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
    epochs = [row for row in rows if f"dev_{metric}" in row]
    measured = losses.twinx()
    measured.plot(
        [row["step"] for row in epochs], [row[f"dev_{metric}"] for row in epochs], color="tab:orange", marker="o"
    )
    measured.set_ylabel(f"dev {metric} after each epoch", color="tab:orange")
    figure.savefig(path, dpi=120)
