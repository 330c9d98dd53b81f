"""Generated blocks of a Markdown file.

A block starts with a line `<!-- generated: NAME ARGUMENTS -->` and ends with a line `<!-- /generated -->`; the lines
between are replaced. Marks inside fenced code, and marks that share a line with text, are text.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import indent

from bert_bench.errors import DocumentationError

__all__ = ["fill_blocks"]

_START = re.compile(r"^(?P<indent>\s*)<!-- generated: (?P<words>.*?) -->\s*$")
_END = re.compile(r"^\s*<!-- /generated -->\s*$")
_FENCE = re.compile(r"^\s*(?P<fence>`{3,}|~{3,})")


def fill_blocks(text: str, path: Path, generate: Callable[[str, Sequence[str]], str]) -> str:
    """Return the text of a Markdown file with every generated block filled.

    Args:
        text: the text.
        path: the file, for error messages.
        generate: returns the Markdown of a block, given its name and arguments.

    Raises:
        DocumentationError: a block has no end or no name, an end has no start, or `generate` raised one; the message
            starts with `file:line`.
    """
    filled: list[str] = []
    fence = ""
    start: tuple[int, str] | None = None
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        if _END.match(line) and not fence:
            if start is None:
                raise DocumentationError(
                    f"{path}:{number}: found the end of a generated block, expected its start first"
                )
            start = None
        elif start is not None:
            if _START.match(line):
                raise DocumentationError(
                    f"{path}:{number}: found a block inside the one of line {start[0]}; end that first"
                )
            continue
        elif not fence and (match := _START.match(line)):
            start = (number, match["words"])
            filled += [line, *_content(match, f"{path}:{number}", generate)]
            continue
        else:
            fence = _fence_after(line, fence)
        filled.append(line)
    if start is not None:
        raise DocumentationError(f"{path}:{start[0]}: generated block without an end; add a line <!-- /generated -->")
    return "".join(f"{line}\n" for line in filled)


def _content(match: re.Match[str], location: str, generate: Callable[[str, Sequence[str]], str]) -> list[str]:
    """Return the lines of a block between its marks, indented as its start is."""
    try:
        name, *arguments = shlex.split(match["words"]) or [""]
        content = generate(name, arguments)
    except (DocumentationError, ValueError) as error:
        raise DocumentationError(f"{location}: {error}") from None
    return ["", *indent(content.strip("\n"), match["indent"]).splitlines(), ""]


def _fence_after(line: str, fence: str) -> str:
    """Return the fence of the code block that is open after the line, `""` for none; `fence` is that before it."""
    match = _FENCE.match(line)
    if match is None:
        return fence
    if not fence:
        return match["fence"]
    closes = match["fence"].startswith(fence) and line.strip() == match["fence"]
    return "" if closes else fence
