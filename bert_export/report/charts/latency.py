"""Draw the latency of one input by its length, a line per variant."""

import math
from collections.abc import Mapping, Sequence

from bert_export.report.charts.svg import Point, Svg, series_class

__all__ = ["latency_chart"]

_WIDTH, _HEIGHT = 480.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 60.0, 14.0, 46.0
_LABEL_DISTANCE = 16.0
"""Smallest vertical distance of the lines' names."""


def latency_chart(tokens: Sequence[int], medians_ms: Mapping[str, Sequence[float]]) -> Svg:
    """Return a chart with logarithmic axes, on which an equal ratio is an equal distance.

    Args:
        tokens: lengths.
        medians_ms: milliseconds for each length, by variant.
    """
    svg = Svg(_WIDTH, _HEIGHT, "Median latency of one input by its length in tokens")
    values = [value for series in medians_ms.values() for value in series]
    ticks = _ticks(min(values), max(values))
    low, high = math.log(ticks[0]), math.log(ticks[-1])
    first, last = math.log(tokens[0]), math.log(tokens[-1])

    def x(length: float) -> float:
        share = (math.log(length) - first) / (last - first) if last > first else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(milliseconds: float) -> float:
        return _HEIGHT - _BOTTOM - (math.log(milliseconds) - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    for tick in ticks:
        svg.line((_LEFT, y(tick)), (_WIDTH - _RIGHT, y(tick)), "grid")
        svg.text((_LEFT - 8, y(tick) + 4), f"{tick:g}", "tick", "end")
    for length in tokens:
        svg.text((x(length), _HEIGHT - _BOTTOM + 20), str(length), "tick", "middle")
    svg.text((_LEFT - 8, _HEIGHT - 6), "ms", "axis", "end")
    svg.text(((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6), "tokens", "axis", "middle")
    ends: list[tuple[Point, str, str]] = []
    for index, (name, series) in enumerate(medians_ms.items()):
        points = [(x(length), y(value)) for length, value in zip(tokens, series, strict=True)]
        svg.path(points, f"line {series_class(index)}")
        svg.dots(points, f"marker {series_class(index)}")
        ends.append((points[-1], name, series_class(index)))
    _name_lines(svg, ends)
    return svg


def _name_lines(svg: Svg, ends: Sequence[tuple[Point, str, str]]) -> None:
    """Write each line's name beside its end, one below the other where two would overlap."""
    lowest = -math.inf
    for (x, y), name, css in sorted(ends, key=lambda end: end[0][1]):
        lowest = max(y, lowest + _LABEL_DISTANCE)
        svg.text((x + 12, lowest + 5), name, f"name {css}")


def _ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5, 10, … from at most `low` to at least `high`; at least two."""
    steps = [factor * 10.0**power for power in range(-4, 7) for factor in (1, 2, 5)]
    first = max(index for index, step in enumerate(steps) if step <= max(low, steps[0]))
    last = next(index for index, step in enumerate(steps) if step >= min(high, steps[-1]) and index > first)
    return steps[first : last + 1]
