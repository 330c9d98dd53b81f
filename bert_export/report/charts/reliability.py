"""Draw a reliability diagram: how often predictions of a probability come true."""

from bert_export.report.analysis import Calibration
from bert_export.report.charts.svg import Svg, series_class

__all__ = ["reliability_diagram"]

_WIDTH, _HEIGHT = 346.0, 380.0
_LEFT, _RIGHT, _TOP = 50.0, 12.0, 14.0
_SIDE = _WIDTH - _LEFT - _RIGHT
_COUNTS_TOP, _COUNTS_HEIGHT = _TOP + _SIDE + 12, 34.0


def reliability_diagram(calibration: Calibration, name: str, series: int) -> Svg:
    """Return a diagram of frequency by probability, above a histogram of the probabilities.

    Args:
        calibration: its bins.
        name: name of the variant.
        series: number of the variant's colour.
    """
    svg = Svg(_WIDTH, _HEIGHT, f"Reliability diagram of {name}")
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _TOP + (1 - tick) * _SIDE
        svg.line((_LEFT, y), (_LEFT + _SIDE, y), "grid")
        svg.text((_LEFT - 8, y + 4), f"{tick * 100:g} %", "tick", "end")
        svg.text((_LEFT + tick * _SIDE, _HEIGHT - 20), f"{tick * 100:g} %", "tick", "end" if tick == 1 else "middle")
    svg.text((_LEFT + _SIDE / 2, _HEIGHT - 3), "probability", "axis", "middle")
    most = max(item.count for item in calibration.bins)
    for item in calibration.bins:
        x, width = _LEFT + item.lower * _SIDE, (item.upper - item.lower) * _SIDE
        tip = (
            f"{item.count} predictions of {item.mean_probability:.1%} on average, "
            f"of which {item.frequency:.1%} came true"
        )
        height = item.frequency * _SIDE
        svg.rect((x + 1, _TOP + _SIDE - height), (width - 2, height), f"bar {series_class(series)}", tip=tip)
        tall = max(1.0, item.count / most * _COUNTS_HEIGHT)
        svg.rect((x + 1, _COUNTS_TOP + _COUNTS_HEIGHT - tall), (width - 2, tall), "count", tip=tip)
    svg.line((_LEFT, _TOP + _SIDE), (_LEFT + _SIDE, _TOP), "ideal")
    return svg
