"""The code blocks of a Markdown page, and a runner for them.

A block's language says what the runner does with it:

* `sh`: the commands of this project run; others (pip, make, docker, …) are left out.
* `python`: runs in the namespace that the page's blocks share.
* any language with a title (```` ```yaml title="recipe.yaml" ````): is written to the file of that name.
* other languages are shown, not run.

A comment on the line before a block, `<!-- not run: REASON -->`, leaves it out. `<!-- setup: bundle NAME -->`, anywhere
on the page, asks for a standard bundle, and `<!-- setup: checkpoint NAME -->` for a checkpoint, see `page_folder`.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from bert_bench.cli import main as bench_main
from bert_export.cli import main as export_main

PROGRAMS: dict[str, click.Group] = {"bert-export": export_main, "bert-bench": bench_main}

_FENCE = re.compile(
    r"(?:^[ ]*<!--[ ]not[ ]run:[ ](?P<reason>[^\n]+?)[ ]-->\n\s*)?"
    r"^(?P<indent>[ ]*)```(?P<language>[\w+-]*)(?P<attributes>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_SETUP = re.compile(r"<!-- setup: (\w+) ([\w-]+) -->")
_ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced code block of a page."""

    page: Path
    line: int
    """Line of the page on which the block's text starts, from 1."""
    language: str
    text: str
    title: str | None
    """The file that the block is; `None` for one that is no file."""
    not_run: str | None
    """Why the block does not run, as the page says it."""

    @property
    def location(self) -> str:
        return f"{self.page.name}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A call of one of `PROGRAMS`."""

    program: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    """Environment variables that are set for it."""
    stdout: str | None
    """The file that its output goes to."""


def read_blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page in order; those within tabs and admonitions lose their indentation."""
    content = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(content):
        indent = re.compile(f"^{match['indent']}", re.MULTILINE)
        title = re.search(r'title="([^"]+)"', match["attributes"])
        yield Block(
            page=page,
            line=content[: match.start("text")].count("\n") + 1,
            language=match["language"],
            text=indent.sub("", match["text"]),
            title=title and title[1],
            not_run=match["reason"],
        )


def read_setup(page: Path) -> tuple[tuple[str, str], ...]:
    """Return kind and name of what a page's `setup` comments ask for."""
    return tuple((match[1], match[2]) for match in _SETUP.finditer(page.read_text(encoding="utf-8")))


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of this project in a shell block; what a pipe leads to is left out."""
    for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        for words in _split(list(lexer), "&&", ";"):
            piped, *_ = _split(words, "|")
            if command := _command(piped):
                yield command


def _split(words: list[str], *separators: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in separators:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _command(words: list[str]) -> Command | None:
    variables = {}
    while words and (assignment := _ASSIGNMENT.fullmatch(words[0])):
        variables[assignment[1]] = assignment[2]
        words = words[1:]
    if not words or words[0] not in PROGRAMS:
        return None
    arguments, *redirection = _split(words[1:], ">")
    stdout = redirection[0][0] if redirection else None
    return Command(program=words[0], arguments=tuple(arguments), variables=variables, stdout=stdout)


def run_page(page: Path, folder: Path) -> dict[str, int]:
    """Run a page's blocks in order in `folder`, which is the working directory; return how many of each kind ran."""
    ran = {"sh": 0, "python": 0, "file": 0}
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in read_blocks(page):
        if block.not_run is not None:
            continue
        if block.title is not None:
            _write(folder / block.title, block.text)
            ran["file"] += 1
        elif block.language == "python":
            source = "\n" * (block.line - 1) + block.text  # so that tracebacks name the page's lines
            exec(compile(source, str(page), "exec"), namespace)
            ran["python"] += 1
        elif block.language == "sh":
            for command in commands(block):
                _run(command, block)
                ran["sh"] += 1
    return ran


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _run(command: Command, block: Block) -> None:
    result = CliRunner().invoke(PROGRAMS[command.program], command.arguments, env=command.variables)
    shown = f"{block.location}: {command.program} {shlex.join(command.arguments)}"
    assert result.exit_code == 0, f"{shown}\n{result.output}{result.exception or ''}"
    if command.stdout is not None and command.stdout != os.devnull:
        _write(Path(command.stdout), result.stdout)
