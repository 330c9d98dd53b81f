"""Code blocks: the site's run, those that do not say why, and every command of the command line is in one."""

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from .code_blocks import PROGRAMS, Block, commands, read_blocks, read_setup, run_page
from .page_folder import BUNDLES
from .pages import PAGES, README, name_of

SHOWN = {"", "cpp", "csv", "diff", "dockerfile", "html", "ini", "json", "jsonl", "markdown", "text", "toml", "yaml"}
"""Languages of blocks that are shown; a shell or Python block by another name would not run unnoticed."""


def with_code(page: Path) -> bool:
    return any(block.language in ("sh", "python") and block.not_run is None for block in read_blocks(page))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in PAGES if with_code(page)], ids=name_of)
def test_code_blocks_run_in_order(page: Path, enter_page_folder: Callable[[Path], Path]) -> None:
    run_page(page, enter_page_folder(page))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_languages_and_setups_are_known(page: Path) -> None:
    unknown = [block for block in read_blocks(page) if block.language not in {"sh", "python", *SHOWN}]
    assert not unknown, f"{unknown[0].location}: write sh or python, with <!-- not run: REASON --> if it cannot run"
    for kind, name in read_setup(page):
        assert name in {"bundle": BUNDLES.keys(), "checkpoint": BUNDLES.values()}[kind], f"{kind} {name}"


def test_every_command_is_in_a_code_block() -> None:
    blocks = (block for page in (README, *PAGES) for block in read_blocks(page) if block.language == "sh")
    arguments = {(command.program, *command.arguments[:1]) for block in blocks for command in commands(block)}
    shown = {words for words in arguments if len(words) == 2 and not words[1].startswith("-")}
    known = {
        (program, name) for program, group in PROGRAMS.items() for name in group.list_commands(click.Context(group))
    }
    assert not known - shown, "commands that no page shows"
    assert not shown - known, "commands that do not exist"


# The reader of blocks.


def page_of(folder: Path, text: str) -> list[Block]:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return [*read_blocks(page)]


def test_blocks_of_a_page(tmp_path: Path) -> None:
    first, second, third = page_of(
        tmp_path,
        "<!-- setup: bundle minilm -->\n\n"
        "<!-- not run: needs a GPU -->\n\n```sh\nbert-export tune x\n```\n\n"
        '=== "Tab"\n\n    ```yaml title="a/b.yaml"\n    x: 1\n      y: 2\n    ```\n\n'
        "```python\nprint(1)\n```\n",
    )
    assert (first.language, first.not_run, first.line) == ("sh", "needs a GPU", 6)
    assert (second.title, second.text, second.not_run) == ("a/b.yaml", "x: 1\n  y: 2\n", None)
    assert (third.language, third.line, third.title) == ("python", 17, None)
    assert read_setup(first.page) == (("bundle", "minilm"),)


def test_commands_of_a_shell_block(tmp_path: Path) -> None:
    (block,) = page_of(
        tmp_path,
        "```sh\npip install 'bert-export[cpu]'  # bert-export\n"
        "OMP_NUM_THREADS=1 bert-export predict b \\\n    'a | b' > out.jsonl && bert-bench report r | head\n```\n",
    )
    predict, report = commands(block)
    assert predict.arguments == ("predict", "b", "a | b")
    assert (predict.variables, predict.stdout) == ({"OMP_NUM_THREADS": "1"}, "out.jsonl")
    assert (report.program, report.arguments, report.stdout) == ("bert-bench", ("report", "r"), None)


def test_pages_run_in_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = '```text title="x.txt"\nhello\n```\n```python\nfound = open("x.txt").read()\n```\n```python\nfound += "!"\n'
    page_of(tmp_path, text.replace("open(", "__import__('pathlib').Path(").replace(".read()", ".read_text()") + "```\n")
    assert run_page(tmp_path / "page.md", tmp_path) == {"sh": 0, "python": 2, "file": 1}


def test_a_failing_block_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page_of(tmp_path, "# Title\n\n```sh\nbert-export inspect nowhere\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:4: bert-export inspect nowhere\n.*nowhere"):
        run_page(tmp_path / "page.md", tmp_path)
