"""Build inline SVG. Texts are escaped by the XML writer; colours come from the page's style sheet, by class."""

from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, tostring

__all__ = ["Svg", "series_class"]

Point = tuple[float, float]
"""Horizontal and vertical position in the units of the view box, from the top left."""


def series_class(index: int) -> str:
    """Return the class that colours the line, points or bars of a series; there are four."""
    return f"series-{index % 4 + 1}"


class Svg:
    """A drawing that is as wide as the page lets it be.

    Args:
        width: width of the view box; a unit is a pixel where the page has room for it.
        height: its height.
        title: what the drawing shows, for those who cannot see it.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        box = f"0 0 {width:g} {height:g}"
        self._root = Element(
            "svg", {"viewBox": box, "role": "img", "class": "chart", "style": f"max-width:{width:g}px"}
        )
        SubElement(self._root, "title").text = title

    def __html__(self) -> str:
        """Return the markup; the template engine takes it as it is."""
        return tostring(self._root, encoding="unicode")

    def text(self, at: Point, content: str, css: str = "", anchor: str = "start") -> None:
        """Write a line of text whose baseline starts, ends or is centred (`middle`) at a point."""
        x, y = at
        element = SubElement(
            self._root, "text", {"x": _number(x), "y": _number(y), "class": css, "text-anchor": anchor}
        )
        element.text = content

    def line(self, start: Point, end: Point, css: str) -> None:
        """Draw a straight line."""
        (x1, y1), (x2, y2) = start, end
        values = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
        SubElement(self._root, "line", {"class": css, **{key: _number(value) for key, value in values.items()}})

    def rect(self, at: Point, size: Point, css: str, *, opacity: float | None = None, tip: str = "") -> None:
        """Draw a rectangle, with a text that appears where the mouse rests on it."""
        (x, y), (width, height) = at, size
        values = {"x": x, "y": y, "width": width, "height": height}
        element = SubElement(self._root, "rect", {"class": css, **{key: _number(v) for key, v in values.items()}})
        if opacity is not None:
            element.set("fill-opacity", f"{opacity:.2f}")
        if tip:
            SubElement(element, "title").text = tip

    def path(self, points: Iterable[Point], css: str) -> None:
        """Draw a line through points."""
        steps = " ".join(f"{'L' if i else 'M'}{_number(x)} {_number(y)}" for i, (x, y) in enumerate(points))
        SubElement(self._root, "path", {"class": css, "d": steps})

    def dots(self, points: Iterable[Point], css: str) -> None:
        """Draw many round dots as one element; the class sets their size by `stroke-width`."""
        steps = "".join(f"M{_number(x)} {_number(y)}h0" for x, y in points)
        SubElement(self._root, "path", {"class": f"dots {css}", "d": steps})


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
