"""Draw a confusion matrix of many labels."""

from collections.abc import Sequence

from bert_export.report.charts.svg import Svg

__all__ = ["heatmap"]

_SIDE = 560.0


def heatmap(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> Svg:
    """Return a map of counts: a row for each expected label, a column for each predicted one.

    A cell's darkness is its share of its row. Hits and confusions differ in colour. Empty cells are not drawn.

    Args:
        labels: names of the labels.
        counts: [labels, labels].
    """
    svg = Svg(_SIDE, _SIDE, "Confusion matrix: expected labels downwards, predicted labels to the right")
    cell = _SIDE / len(labels)
    svg.rect((0, 0), (_SIDE, _SIDE), "field")
    for row, (expected, values) in enumerate(zip(labels, counts, strict=True)):
        for column, (predicted, count) in enumerate(zip(labels, values, strict=True)):
            if count:
                css = "hit" if row == column else "miss"
                tip = f"{expected} → {predicted}: {count}"
                share = 0.15 + 0.85 * count / sum(values)
                svg.rect((column * cell, row * cell), (cell, cell), css, opacity=share, tip=tip)
    return svg
