"""Commands that packages register as entry points."""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import click
import pytest
from click.testing import Result

from bert_export.cli import main, plugins
from bert_runtime.installation import install_command

Run = Callable[..., Result]

MODULE = __name__.replace(".", "_")
"""Name of a module in `sys.modules` that the entry points of these tests refer to."""


@click.command()
def hello() -> None:
    """Greet."""
    click.echo("hello")


class Module:
    """A package's module: a command, and an attribute that is none."""

    command = hello
    number = 3


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that replaces the registered commands, given as name=value."""
    monkeypatch.setitem(sys.modules, MODULE, Module)

    def replace(**values: str) -> None:
        found = EntryPoints(EntryPoint(name, value, plugins.ENTRY_POINT_GROUP) for name, value in values.items())
        monkeypatch.setattr(plugins, "entry_points", lambda group: found.select(group=group))

    return replace


def test_registered_command_is_listed_and_runs(run: Run, register: Any) -> None:
    register(greet=f"{MODULE}:command")
    result = run("greet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "hello\n", "")
    result = run("-h")
    assert re.search(r"^  greet +Greet\.$", result.stdout, re.MULTILINE)
    assert result.stderr == ""


def test_bench_is_registered_by_its_package(run: Run) -> None:
    command = main.get_command(click.Context(main), "bench")
    assert command is not None
    assert command.callback is not None
    assert command.callback.__module__ == "bert_bench.cli.bench"
    assert "bench" not in main.commands


def test_built_in_command_takes_precedence(run: Run, register: Any) -> None:
    register(verify=f"{MODULE}:command")
    assert run("verify", "-h").stdout.startswith("Usage: main verify [OPTIONS] BUNDLE\n")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (f"{MODULE}_absent:command", f"ModuleNotFoundError: No module named '{MODULE}_absent'"),
        (f"{MODULE}:absent", "AttributeError: "),
        (f"{MODULE}:number", "TypeError: expected a click.Command, found int"),
    ],
)
@pytest.mark.parametrize("arguments", [[], ["FILE", "--option", "1"], ["-h"]])
def test_broken_command_fails_with_the_reason(
    run: Run, register: Any, value: str, reason: str, arguments: list[str]
) -> None:
    register(broken=value)
    result = run("broken", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    start = f"Error: the command 'broken' of an unknown package ({value}) cannot be loaded: {reason}"
    assert result.stderr.startswith(start)


def test_broken_command_leaves_the_others_working(run: Run, register: Any) -> None:
    register(broken=f"{MODULE}:absent", greet=f"{MODULE}:command")
    assert run("greet").stdout == "hello\n"
    assert run("verify", "-h").stderr == ""
    result = run("-h")
    assert result.exit_code == 0
    assert all(f"\n  {name} " in result.stdout for name in (*main.commands, "greet", "broken"))
    assert result.stderr.startswith("Warning: the command 'broken' of an unknown package ")
    assert result.stderr.count("\n") == 1


def test_command_that_lacks_an_extra_names_it(run: Run, register: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    register(measure="psutil:command")
    result = run("measure")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: bert-export measure needs the Python module 'psutil', ")
    assert result.stderr.endswith(f"install it with: {install_command('bench')}\n")
    result = run("-h")
    assert re.search(r"^  measure +Cannot be loaded\.$", result.stdout, re.MULTILINE)
    assert result.stderr == ""


def test_built_in_command_imports_no_registered_one() -> None:
    code = (
        "import sys; from bert_export.cli import main; main(['verify', '-h'], standalone_mode=False);"
        "print('bert_bench' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("\nFalse\n")
