"""Draw attention probabilities as maps of queries (rows) and keys (columns).

A layer × head grid of small maps, the maps of one layer or of one head, or one map with its numbers. All maps of a
picture share one color scale of a single hue, which people with any color vision read by its lightness. Sizes are in
inches, so that labels stay readable whatever the number of tokens and maps.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_export.figure_files import check_figure_path, write_figure
from bert_runtime import Attention, InputError
from bert_runtime.numerics import Float32Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["MAX_PLOTTED_TOKENS", "check_plot", "draw_attention", "plot_attention"]

MAX_PLOTTED_TOKENS = 128
"""Tokens of a map: with more, cells of a large map are smaller than its letters. A judgement."""

_COLORS = "Blues"
_BAR_TICKS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
_TEXT, _MUTED, _LINE = "#24292f", "#57606a", "#afb8c1"

_COLUMNS = (3, 4, 5)
"""How many maps may be side by side where only layers or only heads differ."""

_VALUED_TOKENS = 40
"""Largest single map whose cells show their numbers."""

_MIN_SHOWN = 0.005
"""Cells below it stay without a number: they would all read .00."""

_DARK = 0.4
"""Probability above which a number is white."""

_GAP, _MARGIN, _HEADER, _BAR = 0.1, 0.15, 0.62, 0.14
"""Inches between maps, around the picture, of its title, and of the color scale's width."""

_LABEL_SIZE, _SMALL_SIZE, _TITLE_SIZE = 8.0, 6.0, 12.0
_CHARACTER = 0.6
"""Width of an average character per point of its size, in points, and a little more."""


@dataclass(frozen=True)
class _Layout:
    """Positions of the maps of a picture, in inches."""

    rows: int
    columns: int
    side: float
    """Width and height of a map."""
    label_size: float
    """Size of the tokens' letters, in points."""
    label_step: int
    """Every how many tokens there is a label: more than 1 where they would overlap."""
    labels: float
    """Room for the longest label, on the left and below."""
    titles: float
    """Room above each map, or above the first row."""
    is_table: bool
    """Whether rows are layers and columns are heads; otherwise the maps follow one another."""

    @property
    def is_single(self) -> bool:
        """Whether there is one map."""
        return self.rows == self.columns == 1

    @property
    def pitch(self) -> float:
        """From the top of one map to the top of the next."""
        return self.side + (_GAP if self.is_table else self.titles + _GAP)

    @property
    def left(self) -> float:
        return _MARGIN + 0.25 + self.labels + (0.2 if self.is_table else 0.0)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the picture."""
        width = self.left + self.columns * (self.side + _GAP) + 4 * _BAR + 2 * _MARGIN
        height = _HEADER + self.titles + (self.rows - 1) * self.pitch + self.side + self.labels + 0.2 + _MARGIN
        return max(width, 5.2), height

    def box(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Return left, bottom, width and height of a map, as shares of the picture."""
        width, height = self.size
        left = self.left + column * (self.side + _GAP)
        top = height - _HEADER - self.titles - row * self.pitch
        return left / width, (top - self.side) / height, self.side / width, self.side / height


def check_plot(path: Path) -> None:
    """Check that a picture can be written to `path`.

    Raises:
        InputError: the suffix is not png, svg or pdf, or there cannot be such a file.
        MissingExtraError: matplotlib is not installed.
    """
    check_figure_path(path, "plot", "drawing attention")


def plot_attention(attention: Attention, path: Path) -> None:
    """Draw attention to a file, the same bytes for the same probabilities.

    Args:
        attention: what to draw; select layers and heads with `Attention.select`.
        path: the file; its suffix (png, svg, pdf) decides the format.

    Raises:
        InputError: there are more than `MAX_PLOTTED_TOKENS` tokens, or as in `check_plot`.
        DataError: the file cannot be written; what was there before is unchanged.
        MissingExtraError: matplotlib is not installed.
    """
    check_plot(path)
    write_figure(path, partial(_save, draw_attention(attention)))


def _save(figure: "Figure", path: Path, picture_format: str) -> None:
    """Write a figure such that the same figure gives the same bytes."""
    from matplotlib import rc_context

    metadata = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[picture_format]
    # Letters of an SVG stay text, which its reader draws with fonts that have them.
    with rc_context({"svg.hashsalt": "bert-export", "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path, format=picture_format, dpi=150, metadata=metadata)


def draw_attention(attention: Attention) -> "Figure":
    """Return the picture as a figure of matplotlib; see `plot_attention`."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    if (num_tokens := len(attention.tokens)) > MAX_PLOTTED_TOKENS:
        raise InputError(
            f"expected at most {MAX_PLOTTED_TOKENS} tokens to draw, found {num_tokens}; read fewer of the text with "
            f"max_tokens={MAX_PLOTTED_TOKENS}, on the command line --max-tokens {MAX_PLOTTED_TOKENS}"
        )
    layout = _layout(attention)
    figure = Figure(figsize=layout.size, facecolor="white")
    norm = PowerNorm(0.5, vmin=0.0, vmax=1.0)  # the square root, so that small probabilities show
    for row, column, title, probabilities in _maps(attention, layout):
        axes = figure.add_axes(layout.box(row, column))
        image = axes.imshow(probabilities, cmap=_COLORS, norm=norm, interpolation="nearest")
        axes.set_title(title, fontsize=_LABEL_SIZE, color=_MUTED, pad=3)
        if layout.is_table and column == 0:
            axes.set_ylabel(f"layer {attention.layers[row]}", fontsize=_LABEL_SIZE, color=_MUTED)
        _frame(axes, attention)
        is_lowest = (row + 1) * layout.columns + column >= len(attention.layers) * len(attention.heads)
        _label_tokens(axes, attention, layout, on_left=column == 0, below=is_lowest)
        if layout.is_single and num_tokens <= _VALUED_TOKENS:
            _write_values(axes, probabilities)
    _write_titles(figure, attention, layout)
    _draw_bar(figure, image, layout)
    return figure


def _layout(attention: Attention) -> _Layout:
    """Choose the sizes: labels as large as fit, and maps no larger than needed for them."""
    layers, heads, num_tokens = len(attention.layers), len(attention.heads), len(attention.tokens)
    is_table, is_single = layers > 1 and heads > 1, layers == heads == 1
    columns = heads if is_table else _columns(layers * heads)
    if is_single:
        size = _LABEL_SIZE if num_tokens <= 64 else _SMALL_SIZE
        cell = 0.4 if num_tokens <= _VALUED_TOKENS else 1.3 * size / 72
        side = max(2.5, num_tokens * cell)
    else:
        size = _SMALL_SIZE if is_table else _LABEL_SIZE - 1
        smallest, largest = (1.0, 2.4) if is_table else (1.8, 4.0)
        side = min(largest, max(smallest, num_tokens * 1.3 * size / 72))
    step = max(1, -(-int(1.2 * size * num_tokens) // int(side * 72)))
    longest = max(map(len, attention.words[::step]))
    return _Layout(
        rows=layers if is_table else -(-layers * heads // columns),
        columns=columns,
        side=side,
        label_size=size,
        label_step=step,
        labels=longest * size * _CHARACTER / 72 + 0.08,
        titles=0.0 if is_single else 0.22,
        is_table=is_table,
    )


def _columns(num_maps: int) -> int:
    """Return how many maps are side by side: those that leave the fewest places empty, and about four."""
    return num_maps if num_maps < 3 else min(_COLUMNS, key=lambda columns: (-num_maps % columns, abs(columns - 4)))


def _maps(attention: Attention, layout: _Layout) -> Iterator[tuple[int, int, str, Float32Array]]:
    """Iterate over the maps: row, column, title, and probabilities [S, S]."""
    for i, layer in enumerate(attention.layers):
        for j, head in enumerate(attention.heads):
            row, column = divmod(i * len(attention.heads) + j, layout.columns)
            title = f"head {head}" if len(attention.heads) > 1 else f"layer {layer}"
            is_titled = row == 0 if layout.is_table else not layout.is_single
            yield row, column, title if is_titled else "", attention.probabilities[i, j]


def _frame(axes: "Axes", attention: Attention) -> None:
    """Draw a thin frame, and lines where the second text of a pair starts."""
    axes.tick_params(length=0, pad=2)
    for spine in axes.spines.values():
        spine.set(color=_LINE, linewidth=0.5)
    if 1 in attention.sequence_ids:
        start = attention.sequence_ids.index(1) - 0.5
        axes.axhline(start, color=_MUTED, linewidth=0.6, linestyle=(0, (3, 2)))
        axes.axvline(start, color=_MUTED, linewidth=0.6, linestyle=(0, (3, 2)))


def _label_tokens(axes: "Axes", attention: Attention, layout: _Layout, *, on_left: bool, below: bool) -> None:
    """Write the tokens at the outer edges of the picture."""
    places = range(0, len(attention.words), layout.label_step)
    words = [attention.words[place] for place in places]
    style: dict[str, Any] = {"fontsize": layout.label_size, "color": _TEXT, "parse_math": False}  # "$" is a token
    axes.set_yticks(places if on_left else [], words if on_left else [], **style)
    axes.set_xticks(places if below else [], words if below else [], rotation=90, **style)


def _write_values(axes: "Axes", probabilities: Float32Array) -> None:
    """Write the probabilities into the cells."""
    for (row, column), value in _cells(probabilities):
        text = f"{value:.2f}".removeprefix("0")
        color = "white" if value > _DARK else _TEXT
        axes.text(column, row, text, ha="center", va="center", fontsize=_LABEL_SIZE - 0.5, color=color)


def _cells(probabilities: Float32Array) -> Iterator[tuple[tuple[int, int], float]]:
    size = len(probabilities)
    for row in range(size):
        for column in range(size):
            if (value := float(probabilities[row, column])) >= _MIN_SHOWN:
                yield (row, column), value


def _write_titles(figure: "Figure", attention: Attention, layout: _Layout) -> None:
    """Write what the picture shows, and what its axes are."""
    width, height = layout.size
    x = _MARGIN / width
    figure.text(x, 1 - 0.2 / height, _title(attention), fontsize=_TITLE_SIZE, color=_TEXT, va="center")
    note = "Probabilities; each row adds up to 1." + (" The text was truncated." if attention.truncated else "")
    figure.text(x, 1 - 0.43 / height, note, fontsize=_LABEL_SIZE, color=_MUTED, va="center")
    left, bottom, *_ = layout.box(layout.rows - 1, 0)
    _, _, map_width, map_height = layout.box(0, 0)
    top = layout.box(0, 0)[1] + map_height
    right = layout.box(0, layout.columns - 1)[0] + map_width
    style: dict[str, Any] = {"fontsize": _LABEL_SIZE, "color": _MUTED}
    figure.text((left + right) / 2, 0.13 / height, "attended to (key)", ha="center", va="center", **style)
    figure.text(0.17 / width, (bottom + top) / 2, "attends (query)", ha="center", va="center", rotation=90, **style)


def _title(attention: Attention) -> str:
    """Return the numbers of the layers and heads."""
    layers, heads = _numbers("layer", attention.layers), _numbers("head", attention.heads)
    return f"Attention: {layers}, {heads}"


def _numbers(kind: str, numbers: Sequence[int]) -> str:
    return f"{kind} {numbers[0]}" if len(numbers) == 1 else f"{kind}s {numbers[0]} to {numbers[-1]}"


def _draw_bar(figure: "Figure", image: "AxesImage", layout: _Layout) -> None:
    """Draw the color scale on the right of the first row."""
    width, _ = layout.size
    left, bottom, map_width, map_height = layout.box(0, layout.columns - 1)
    axes = figure.add_axes((left + map_width + _BAR / width, bottom, _BAR / width, map_height))
    bar = figure.colorbar(image, cax=axes, ticks=_BAR_TICKS)
    bar.outline.set(color=_LINE, linewidth=0.5)
    bar.ax.tick_params(labelsize=_SMALL_SIZE, labelcolor=_MUTED, length=2, color=_LINE, pad=2)
    bar.ax.set_yticks(_BAR_TICKS, [f"{tick:g}" for tick in _BAR_TICKS])
