"""The picture of the page about attention: what its commands draw of the real MiniLM."""

import re
from pathlib import Path

import numpy as np
import pytest

from bert_export import export
from bert_export.attention_plot import plot_attention
from bert_runtime import load_attention

from .pages import DOCS

pytestmark = [pytest.mark.slow, pytest.mark.pretrained]


def texts(path: Path) -> tuple[list[str], list[float]]:
    """The words of an SVG, and the numbers in its cells."""
    found = re.findall(r"<text [^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))
    words = [text for text in found if not re.fullmatch(r"\.\d\d", text)]
    return words, [float(text) for text in found if re.fullmatch(r"\.\d\d", text)]


def test_the_picture_is_what_the_commands_draw(pretrained_minilm: Path, tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "attention.md").read_text(encoding="utf-8")
    command = re.search(r'attention minilm "([^"]+)" \\\n +--layer (\d) --head (\d) --plot head\.svg', page)
    assert command is not None
    text, layer, head = command.groups()
    export(pretrained_minilm, tmp_path / "minilm", precisions=["fp32"], attention=True)
    attention = load_attention(tmp_path / "minilm")(text).select(int(layer), int(head))
    plot_attention(attention, tmp_path / "head.svg")
    (words, numbers), (shown, shown_numbers) = texts(tmp_path / "head.svg"), texts(DOCS / "pictures" / "attention.svg")
    assert shown == words
    assert np.abs(np.array(shown_numbers) - np.array(numbers)).max() <= 0.0101  # rounded to two digits elsewhere
