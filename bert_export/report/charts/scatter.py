"""Draw predicted numbers by expected ones."""

import math
from collections.abc import Sequence

from bert_export.report.charts.svg import Svg, series_class

__all__ = ["nice_ticks", "scatter_plot"]

_SIDE = 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 12.0, 12.0, 42.0


def scatter_plot(points: Sequence[tuple[float, float]], name: str, predicted: str, series: int) -> Svg:
    """Return a plot of points.

    Args:
        points: expected and predicted number.
        name: name of the variant.
        predicted: what the predicted numbers are.
        series: number of the variant's colour.
    """
    svg = Svg(_SIDE, _SIDE, f"{predicted} of {name} by the expected score")
    columns = list(zip(*points, strict=True))
    across, up = nice_ticks(min(columns[0]), max(columns[0])), nice_ticks(min(columns[1]), max(columns[1]))

    def x(value: float) -> float:
        return _LEFT + (value - across[0]) / (across[-1] - across[0]) * (_SIDE - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _SIDE - _BOTTOM - (value - up[0]) / (up[-1] - up[0]) * (_SIDE - _TOP - _BOTTOM)

    for tick in up:
        svg.line((_LEFT, y(tick)), (_SIDE - _RIGHT, y(tick)), "grid")
        svg.text((_LEFT - 8, y(tick) + 4), f"{tick:g}", "tick", "end")
    for tick in across:
        svg.text((x(tick), _SIDE - _BOTTOM + 18), f"{tick:g}", "tick", "middle")
    svg.text(((_LEFT + _SIDE - _RIGHT) / 2, _SIDE - 4), "expected", "axis", "middle")
    svg.dots(((x(expected), y(found)) for expected, found in points), f"cloud {series_class(series)}")
    return svg


def nice_ticks(low: float, high: float) -> list[float]:
    """Return about five multiples of 1, 2 or 5 times a power of ten that enclose a range."""
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 10) for number in range(first, max(last, first + 1) + 1)]
