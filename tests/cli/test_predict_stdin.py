"""`bert-export predict` on lines of stdin: as they arrive, blank ones too, and around lines that cannot be read."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bert_runtime import Model, load

Run = Callable[..., Result]

TEXTS = ["", "hello there", "  ", "where is my card?", "déjà vu 😀"]


@pytest.fixture(scope="module")
def model(classifier_bundle: Path) -> Model:
    return load(classifier_bundle, precision="fp32")


@pytest.fixture
def start(classifier_bundle: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start `bert-export predict` with pipes for stdin, stdout and stderr."""
    started = []

    def run(*options: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "bert_export", "predict", str(classifier_bundle), *options]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1))
        return started[-1]

    yield run
    for process in started:
        with process:  # closes the pipes
            process.kill()


@pytest.mark.timeout(60)
def test_a_pipe_is_answered_line_by_line(start: Callable[..., "subprocess.Popen[str]"]) -> None:
    """Each line is written after the answer to the one before it has been read."""
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    for text in ("hello there", "", "bye"):
        process.stdin.write(f"{text}\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith(f"\t{text}\n")
    process.stdin.close()
    assert process.wait(30) == 0


@pytest.mark.timeout(60)
def test_a_pipe_is_answered_line_by_line_into_a_pipe(
    start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "answers")
    process = start("--output", str(tmp_path / "answers"))
    assert process.stdin is not None
    with (tmp_path / "answers").open() as answers:
        for text in ("hello there", "bye"):
            process.stdin.write(f"{text}\n")
            process.stdin.flush()
            assert "label" in json.loads(answers.readline())
        process.stdin.close()
        assert answers.read() == ""
    assert process.wait(30) == 0


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_blank_lines_are_inputs_everywhere(
    run: Run, classifier_bundle: Path, model: Model, tmp_path: Path, newline: str
) -> None:
    """One rule in the API, on stdin, in text files and tables: every line has a result."""
    expected = [f"{model(text).summary()}\t{' '.join(text.split())}" for text in TEXTS]
    lines = "".join(text + newline for text in TEXTS).encode()
    (tmp_path / "texts.txt").write_bytes(lines)
    (tmp_path / "texts.csv").write_bytes(f"text{newline}".encode() + lines)
    (tmp_path / "columns.csv").write_bytes("".join(f"{i},{text}{newline}" for i, text in enumerate(TEXTS)).encode())
    predict = ("predict", classifier_bundle, "--precision", "fp32")
    for result in (
        run(*predict, stdin=lines),
        run(*predict, "--input", tmp_path / "texts.txt"),
        run(*predict, "--input", tmp_path / "texts.csv"),
        run(*predict, "--input", tmp_path / "columns.csv", "--columns", "text=1"),
        run(*predict, *TEXTS),
    ):
        assert (result.exit_code, result.stdout.splitlines(), result.stderr) == (0, expected, "")


def test_empty_stdin_prints_nothing(run: Run, classifier_bundle: Path) -> None:
    result = run("predict", classifier_bundle, stdin="")
    assert (result.exit_code, result.stdout) == (0, "")


BAD_LINE = b"hello\n\xff\xfe\nbye\n"
PROBLEM = "<stdin>:2: expected UTF-8 text, found byte 0xff; convert the file with: iconv -f latin1 -t utf-8"


def test_a_line_that_is_not_utf8_is_an_error_after_the_results_before_it(run: Run, classifier_bundle: Path) -> None:
    result = run("predict", classifier_bundle, stdin=BAD_LINE)
    assert (result.exit_code, result.stderr) == (1, f"Error: {PROBLEM}\n")
    assert [line.rpartition("\t")[2] for line in result.stdout.splitlines()] == ["hello"]


def test_a_line_that_is_not_utf8_is_skipped(run: Run, classifier_bundle: Path) -> None:
    result = run("predict", classifier_bundle, "--on-error", "skip", stdin=BAD_LINE)
    assert (result.exit_code, result.stderr) == (0, f"skipped {PROBLEM}\n")
    assert [line.rpartition("\t")[2] for line in result.stdout.splitlines()] == ["hello", "bye"]


def test_a_line_that_is_not_utf8_has_an_error_in_its_place(run: Run, classifier_bundle: Path) -> None:
    result = run("predict", classifier_bundle, "--on-error", "return", "--json", stdin=BAD_LINE)
    assert (result.exit_code, result.stderr) == (0, "")
    answers: list[Any] = [json.loads(line) for line in result.stdout.splitlines()]
    assert answers[1] == {"error": PROBLEM}
    assert [list(answer) for answer in answers] == [["label", "score"], ["error"], ["label", "score"]]


def test_utf16_is_named(run: Run, classifier_bundle: Path) -> None:
    for on_error in ("raise", "skip", "return"):
        result = run("predict", classifier_bundle, "--on-error", on_error, stdin="hello\nbye\n".encode("utf-16"))
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == (
            "Error: <stdin>: expected UTF-8 text, found UTF-16; convert it with: iconv -f utf-16 -t utf-8\n"
        )
