"""Output in a terminal: tables, bars and colour there, plain text elsewhere."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import click
import pytest

from bert_export.cli.progress import RunEstimate
from bert_export.cli.terminal import format_table

pytestmark = pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo-terminals")


def in_terminal(*arguments: object, columns: int, exit_code: int = 0, styled: bool = False) -> str:
    """Run `bert-export` in a terminal; return what it wrote, unless `styled` without colour and cursor movements."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        os.execve(
            sys.executable,
            [sys.executable, "-m", "bert_export", *map(str, arguments)],
            environment | {"TERM": "xterm", "LC_ALL": "C.UTF-8"},
        )
    written = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the program has ended
            part = b""
        if not part:
            break
        written += part
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == exit_code, written
    if styled:
        return written.decode()
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written.decode()).replace("\r\n", "\n")
    return re.sub(r"\r(?=[^\n\r])", "\n", text)


@pytest.mark.parametrize("columns", [80, 120])
def test_inspect_draws_tables_as_wide_as_the_terminal(classifier_bundle: Path, columns: int) -> None:
    shown = in_terminal("inspect", classifier_bundle, columns=columns)
    assert "─" * 60 in shown
    assert re.search(r"^variant +size .*speed +fidelity", shown, re.MULTILINE)
    tables = shown.split("\n", 1)[1]  # the first line names the bundle, whose path is long
    assert max(map(len, tables.splitlines())) <= columns


def test_evaluate_draws_a_table(classifier_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("text,label\nhello,greeting\nbye,farewell\n")
    shown = in_terminal("evaluate", classifier_bundle, tmp_path / "data.csv", columns=80)
    assert re.search(r"^accuracy +[\d.]+ *$", shown, re.MULTILINE)


def test_errors_are_red_in_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[31m" in in_terminal("inspect", "absent", columns=80, exit_code=1, styled=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in in_terminal("inspect", "absent", columns=80, exit_code=1, styled=True)


def test_json_is_the_same_in_a_terminal(classifier_bundle: Path) -> None:
    shown = in_terminal("predict", classifier_bundle, "hello", "--json", columns=80)
    assert shown.strip().startswith('{"label": ')


@pytest.mark.slow
def test_export_draws_stages_and_says_what_it_made(classifier_checkpoint: Path, tmp_path: Path) -> None:
    shown = in_terminal("export", classifier_checkpoint, tmp_path / "bundle", columns=100)
    assert re.search(r"^ +\d+\.\d s  capturing the graph with torch.onnx *$", shown, re.MULTILINE)
    assert " left" in shown
    assert re.search(r"^int8 +[\d.]+ MB +[\d.]+ +[\d.]+ +[\d.]+× +label_agreement", shown, re.MULTILINE)
    assert re.search(r"^default: (int8|fp32), since ", shown, re.MULTILINE)
    assert "next: bert-export predict " in shown


class Clock:
    """A clock that stands still."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


STAGES = {"reading": 1.0, "training": 6.0, "writing": 3.0}


def test_time_left_follows_the_pace_of_the_stages_so_far() -> None:
    clock = Clock()
    estimate = RunEstimate(STAGES, clock)
    estimate.start("reading the file")
    assert estimate.left_s() is None
    clock.now = 2.0  # twice as long as elsewhere
    estimate.start("training")
    assert estimate.left_s() == 18.0
    clock.now = 6.0
    assert estimate.left_s() == 14.0
    assert estimate.left_s(fraction=0.25) == 12.0 + 3.0 * 16 / 6  # the stage is slower than the one before
    clock.now = 14.0
    estimate.start("writing")
    assert estimate.left_s() == 6.0
    clock.now = 60.0
    assert estimate.left_s() == 0.0


def test_no_time_left_is_stated_without_knowledge() -> None:
    estimate = RunEstimate({})
    estimate.start("reading")
    estimate.start("an unknown stage")
    assert estimate.left_s(fraction=0.5) is None


def test_columns_of_quantities_stand_right_with_their_names() -> None:
    rows = [("name", "size", "time"), ("a", "90.3 MB", "-"), ("longer", "3.6 MB", 12.5)]
    assert format_table(rows, has_header=True).splitlines() == [
        "name       size     time",
        "a       90.3 MB        -",
        "longer   3.6 MB  12.5000",
    ]


def test_text_without_a_header_stands_left() -> None:
    assert format_table([("precision", "int8"), ("examples", 4)]) == "precision  int8\nexamples      4"
    assert click.unstyle(format_table([("a", "b")])) == "a  b"
