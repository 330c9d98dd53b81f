"""Help texts: groups of options, examples that parse, widths, colour, and completion by shells."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import Result

from bert_bench.cli import main as bench_main
from bert_export.cli import main

Run = Callable[..., Result]


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of both programs by their full names."""
    for program, group in (("bert-export", main), ("bert-bench", bench_main)):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield f"{program} {name}", command


COMMANDS = dict(commands())


def help_of(command: click.Command, width: int = 78) -> str:
    context = command.make_context(command.name, [], resilient_parsing=True)
    context.terminal_width = width
    return click.unstyle(command.get_help(context))


def example_lines(command: click.Command) -> list[str]:
    """Return the examples of a command's help, with continued lines joined and without comments."""
    lines = help_of(command).partition("Examples:\n")[2].replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_parse(name: str) -> None:
    """Options exist and take these values, and nothing that is required is missing."""
    command = COMMANDS[name]
    own = [line.rpartition(" | ")[2] if "| bert-export" in line else line for line in example_lines(command)]
    assert own
    for line in own:
        words = shlex.split(line.partition(" | jq")[0])
        assert words[:2] == name.split()
        command.make_context(name, words[2:])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_into_80_columns(name: str) -> None:
    assert [line for line in help_of(COMMANDS[name]).splitlines() if len(line) > 80] == []


def test_options_are_grouped(run: Run) -> None:
    shown = run("train", "--help").stdout
    headings = re.findall(r"^(\S.*):$", shown, re.MULTILINE)
    assert headings == ["Task", "Input", "Output", "Training", "Processes", "Run", "Other options", "Examples"]
    assert "--epochs" in shown.partition("Training:")[2].partition("Processes:")[0]


def test_every_option_of_the_command_is_listed_once() -> None:
    for name, command in COMMANDS.items():
        shown = help_of(command).partition("Examples:")[0]
        for option in command.params:
            if isinstance(option, click.Option):
                assert len(re.findall(rf"^  {option.opts[0]}(?=[\s,])", shown, re.MULTILINE)) == 1, (name, option)


def test_long_choices_are_listed_in_the_text(run: Run) -> None:
    shown = " ".join(run("train", "--help").stdout.split())
    assert "--task TASK" in shown
    assert "One of text-classification, token-classification," in shown


def test_values_are_shown_as_they_are_accepted(run: Run) -> None:
    assert "--max-tokens [N|auto]" in run("compress", "--help").stdout


def test_colour_is_for_terminals_that_want_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" in run("train", "--help", color=True).stdout
    assert "\x1b[" not in run("train", "--help").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run("train", "--help", color=True).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, tmp_path: Path) -> None:
    """The program answers a shell that completes `bert-export predict bundle --on`."""
    words = {"bash": ("predict bundle --on", "3"), "zsh": ("predict bundle --on", "3"), "fish": ("predict bundle", "")}
    environment = {
        **os.environ,
        "_BERT_EXPORT_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": f"bert-export {words[shell][0]}",
        "COMP_CWORD": "--on" if shell == "fish" else "3",
    }
    command = [sys.executable, "-m", "bert_export"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--on-error" in done.stdout


def test_help_says_how_to_complete(run: Run) -> None:
    shown = run("--help").stdout
    for shell in ("bash", "zsh", "fish"):
        assert f"_BERT_EXPORT_COMPLETE={shell}_source bert-export" in shown
