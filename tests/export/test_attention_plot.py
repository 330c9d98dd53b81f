"""Pictures of attention: which maps, labels and numbers they show, and what is refused."""

import re
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from bert_export.attention_plot import MAX_PLOTTED_TOKENS, check_plot, draw_attention, plot_attention
from bert_runtime import Attention, DataError, InputError, MissingExtraError


def attention(num_layers: int, num_heads: int, words: tuple[str, ...], pair_start: int | None = None) -> Attention:
    """Random attention; `pair_start` is the first token of the second text."""
    generator = np.random.default_rng(0)
    scores = generator.random((num_layers, num_heads, len(words), len(words)), dtype=np.float32) ** 4
    sequence_ids = [0 if pair_start is None or index < pair_start else 1 for index in range(len(words))]
    return Attention(
        tokens=words,
        words=words,
        offsets=((0, 0),) * len(words),
        sequence_ids=tuple(sequence_ids),
        layers=tuple(range(num_layers)),
        heads=tuple(range(num_heads)),
        probabilities=scores / scores.sum(axis=-1, keepdims=True),
    )


WORDS = ("[CLS]", "my", "$5", "card_x", "$is$", "<lost>", "[SEP]")


def texts(path: Path) -> list[str]:
    """The texts of an SVG, which keeps letters as text."""
    found = re.findall(r"<text [^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))
    return [text.replace("&lt;", "<").replace("&gt;", ">").strip() for text in found]


def test_all_layers_and_heads_are_a_grid(tmp_path: Path) -> None:
    path = tmp_path / "grid.svg"
    plot_attention(attention(2, 3, WORDS), path)
    shown = texts(path)
    assert shown.count("Attention: layers 0 to 1, heads 0 to 2") == 1
    assert {text for text in shown if re.fullmatch(r"(layer|head) \d", text)} == {
        "layer 0", "layer 1", "head 0", "head 1", "head 2"
    }  # fmt: skip
    for word in WORDS:  # on the left of 2 rows, and below 3 columns
        assert shown.count(word) == 5, word
    assert not [text for text in shown if re.fullmatch(r"\.\d\d", text)]


@pytest.mark.parametrize(
    ("num_maps", "columns"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 3), (7, 4), (12, 4), (16, 4)]
)
@pytest.mark.parametrize("kind", ["layer", "head"])
def test_maps_of_one_layer_or_head_follow_one_another(kind: str, num_maps: int, columns: int) -> None:
    shape = (num_maps, 1) if kind == "layer" else (1, num_maps)
    *maps, _ = draw_attention(attention(*shape, WORDS)).axes  # the last is the color scale
    assert len(maps) == num_maps
    assert len({round(axes.get_position().x0, 6) for axes in maps}) == columns
    assert [axes.get_title() for axes in maps] == ([f"{kind} {i}" for i in range(num_maps)] if num_maps > 1 else [""])
    labelled_below = [bool(axes.get_xticklabels()) for axes in maps]
    assert sum(labelled_below) == columns
    assert all(labelled_below[-columns:])


def test_one_map_has_its_numbers(tmp_path: Path) -> None:
    chosen = attention(2, 3, WORDS).select(layer=1, head=2)
    plot_attention(chosen, tmp_path / "one.svg")
    shown = texts(tmp_path / "one.svg")
    assert "Attention: layer 1, head 2" in shown
    numbers = [text for text in shown if re.fullmatch(r"\.\d\d|1\.00", text)]
    expected = [f"{value:.2f}".removeprefix("0") for value in chosen.probabilities.ravel() if value >= 0.005]
    assert numbers == expected
    assert {"attends (query)", "attended to (key)"} <= {*shown}


def test_rows_are_queries(tmp_path: Path) -> None:
    chosen = attention(1, 1, WORDS)
    axes, _ = draw_attention(chosen).axes
    assert np.array_equal(axes.images[0].get_array(), chosen.probabilities[0, 0])
    assert [label.get_text() for label in axes.get_yticklabels()] == [*WORDS]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first token is on top


def test_all_maps_share_one_scale() -> None:
    *maps, scale = draw_attention(attention(2, 2, WORDS)).axes
    assert {axes.images[0].get_clim() for axes in maps} == {(0.0, 1.0)}
    assert [label.get_text() for label in scale.get_yticklabels()][-1] == "1"


def test_the_second_text_of_a_pair_starts_at_a_line() -> None:
    axes, _ = draw_attention(attention(1, 1, WORDS, pair_start=4)).axes
    assert [line.get_xydata()[:, 1].tolist() for line in axes.lines[:1]] == [[3.5, 3.5]]
    assert len(axes.lines) == 2
    assert not draw_attention(attention(1, 1, WORDS)).axes[0].lines


@pytest.mark.parametrize(
    ("layers", "heads", "tokens"), [(*shape, n) for shape, n in product([(2, 12), (1, 1), (1, 5)], [2, 30, 128])]
)
def test_labels_never_overlap(layers: int, heads: int, tokens: int) -> None:
    figure = draw_attention(attention(layers, heads, ("token",) * tokens))
    for axes in figure.axes[:-1]:
        labels = axes.get_yticklabels()
        if labels:
            height_points = axes.get_position().height * figure.get_size_inches()[1] * 72
            assert height_points / len(labels) >= labels[0].get_fontsize()
            assert len(labels) >= 14 or len(labels) == tokens


def test_the_same_attention_gives_the_same_bytes(tmp_path: Path) -> None:
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
        plot_attention(attention(1, 2, WORDS), first)
        plot_attention(attention(1, 2, WORDS), second)
        assert first.read_bytes() == second.read_bytes()
        assert first.read_bytes().startswith(start)
    assert len([*tmp_path.iterdir()]) == 6


def test_letters_that_the_font_lacks_are_no_warning(tmp_path: Path) -> None:
    for name in ("a.png", "a.svg"):
        plot_attention(attention(1, 1, ("東", "京", "🙂")), tmp_path / name)
    assert "東" in texts(tmp_path / "a.svg")


def test_more_tokens_than_can_be_read_are_refused(tmp_path: Path) -> None:
    words = ("card",) * (MAX_PLOTTED_TOKENS + 1)
    with pytest.raises(InputError, match=r"at most 128 tokens to draw, found 129; .*--max-tokens 128"):
        plot_attention(attention(1, 1, words), tmp_path / "a.png")
    assert not [*tmp_path.iterdir()]


def test_other_formats_are_refused(tmp_path: Path) -> None:
    for name in ("a.gif", "a"):
        with pytest.raises(InputError, match=rf"{name}: expected a picture that ends in \.png, \.svg, \.pdf"):
            check_plot(tmp_path / name)


def test_what_cannot_be_written_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"absent/a\.png: expected a folder .*absent to write into, found none"):
        plot_attention(attention(1, 1, WORDS), tmp_path / "absent" / "a.png")
    path = tmp_path / "a.png"
    path.write_bytes(b"before")

    def fail(figure: object, partial: Path, picture_format: str) -> None:
        partial.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bert_export.attention_plot._save", fail)
    with pytest.raises(DataError, match=r"a\.png: cannot be written: No space left on device"):
        plot_attention(attention(1, 1, WORDS), path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"a.png": b"before"}


def test_missing_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr("bert_export.figure_files.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"drawing attention needs .*'matplotlib'.*\[plot\]"):
        check_plot(tmp_path / "a.png")
