"""The hand-written picture of the pipeline: well-formed, and the same for light and dark pages but for its colors."""

import re
from pathlib import Path
from xml.etree import ElementTree

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"


def test_both_pictures_show_the_same() -> None:
    light, dark = ((PICTURES / f"pipeline{suffix}.svg").read_text(encoding="utf-8") for suffix in ("", "-dark"))
    colors = re.compile(r"#[0-9a-f]{6}")
    assert light != dark
    assert colors.sub("", light) == colors.sub("", dark)


def test_texts_lie_inside_their_boxes() -> None:
    """A character of 13 pixels is 0.62 of that wide on average in DejaVu Sans, the widest of the fonts named."""
    root = ElementTree.parse(PICTURES / "pipeline.svg").getroot()
    namespace = "{http://www.w3.org/2000/svg}"
    boxes = [{key: float(box.attrib[key]) for key in ("x", "width")} for box in root.iter(f"{namespace}rect")]
    assert len(boxes) == 4
    for text in root.iter(f"{namespace}text"):
        center, size = float(text.attrib["x"]), 15 if text.attrib["class"] == "title" else 13
        width = len(text.text or "") * size * 0.62
        (box,) = [box for box in boxes if box["x"] < center < box["x"] + box["width"]]
        assert width <= box["width"], text.text
