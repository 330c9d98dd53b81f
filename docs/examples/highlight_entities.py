"""Mark the entities of texts in a web page: each type has its colour, and its score is in the tooltip.

Install:  nothing more
Run:      python highlight_entities.py entities-bundle messages.txt > entities.html    (a text a line)
"""

import argparse
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bert_runtime import Entities, Entity, load

COLOURS = ("#ffd8a8", "#b2f2bb", "#a5d8ff", "#eebefa", "#ffc9c9", "#ffec99", "#99e9f2", "#d0bfff")

PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Entities</title>
<style>
  body {{ font: 1rem/1.8 system-ui; max-width: 45rem; margin: 2rem auto; padding: 0 1rem }}
  mark {{ border-radius: .3em; padding: .1em .3em }}
  small {{ font-size: .7em; opacity: .7 }}
</style>
{paragraphs}
"""


def highlight(text: str, entities: Sequence[Entity], colours: dict[str, str]) -> str:
    """Return the text as HTML with its entities marked; a new type gets the next of `COLOURS`."""
    parts, end = [], 0
    for entity in entities:  # in the order of the text; start and end count characters
        colour = colours.setdefault(entity.label, COLOURS[len(colours) % len(COLOURS)])
        label, words = escape(entity.label), escape(text[entity.start : entity.end])
        mark = f'<mark style="background: {colour}" title="{entity.score:.2f}">{words} <small>{label}</small></mark>'
        parts += [escape(text[end : entity.start]), mark]
        end = entity.end
    return "".join(parts) + escape(text[end:])


def build_page(texts: Sequence[str], results: Sequence[Entities]) -> str:
    """Return a page with a paragraph for each text."""
    colours: dict[str, str] = {}
    marked = [highlight(text, result.entities, colours) for text, result in zip(texts, results, strict=True)]
    return PAGE.format(paragraphs="\n".join(f"<p>{paragraph}</p>" for paragraph in marked))


def main() -> None:
    parser = argparse.ArgumentParser(description="Mark the entities of texts in a web page.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("texts", type=Path)
    arguments = parser.parse_args()
    texts = arguments.texts.read_text(encoding="utf-8").splitlines()
    print(build_page(texts, load(arguments.bundle)(texts)))


if __name__ == "__main__":
    main()
