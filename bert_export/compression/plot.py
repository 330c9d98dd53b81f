"""Draw the candidates of a search: their metric against their latency."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_export.figure_files import check_figure_path, write_figure

__all__ = ["check_plot", "plot_candidates"]

_SMALLER, _UNCOMPRESSED, _DOMINATED = "#1f6feb", "#57606a", "#b6c2cf"


def check_plot(path: Path) -> None:
    """Check that a picture can be written to `path`.

    Raises:
        InputError: the suffix is not png, svg or pdf, or there cannot be such a file.
        MissingExtraError: matplotlib is not installed.
    """
    check_figure_path(path, "plot", "drawing candidates")


def plot_candidates(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the metric of measured candidates on the search's rows, with its 95 % interval, against their latency.

    Args:
        rows: at least one row of `pareto_rows`.
        path: the file; its suffix (png, svg, pdf) decides the format.

    Raises:
        DataError: the file cannot be written; what was there before is unchanged.
    """
    from matplotlib.figure import Figure

    uncompressed_ms = rows[0]["uncompressed_latency_ms"]
    figure = Figure(figsize=(6.4, 4), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for row in rows:
        low, high = row["compressed_interval"]
        error = [[max(row["compressed"] - low, 0.0)], [max(high - row["compressed"], 0.0)]]
        color = _SMALLER if row["pareto"] else _DOMINATED
        # Each was timed in turn with the uncompressed model, at another moment: only the ratio can be compared.
        place = (uncompressed_ms / row["speedup"], row["compressed"])
        axes.errorbar(*place, error, fmt="o", color=color, capsize=3)
        tokens = f", tokens {row['token_pruning']}" if row.get("token_pruning") else ""
        label = f"{len(row['layers'])} layers, {row['intermediate_size']}{tokens}"
        axes.annotate(label, place, xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.plot(uncompressed_ms, rows[0]["uncompressed"], "s", color=_UNCOMPRESSED)
    axes.axhline(rows[0]["uncompressed"], color=_UNCOMPRESSED, linewidth=0.8, linestyle=":")
    axes.set_xlabel("milliseconds for a text of dev, by the ratio to uncompressed INT8 (square)")
    axes.set_ylabel(f"{rows[0]['metric']} on the search's rows, 95 % interval")
    axes.set_xlim(left=0)
    write_figure(path, lambda partial, picture_format: figure.savefig(partial, format=picture_format, dpi=150))
