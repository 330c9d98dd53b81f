"""Errors of the system as one line: paths that no file can have, full disks, and Ctrl-C while modules are imported."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]

LONG = "x" * 5000
DEEP = "a/" * 2500

PATHS = {
    "inspect": ["inspect", "{path}"],
    "verify": ["verify", "{path}"],
    "tune": ["tune", "{path}"],
    "evaluate a bundle": ["evaluate", "{path}", "rows.csv"],
    "evaluate on a file": ["evaluate", "{bundle}", "{path}.csv"],
    "predict with a bundle": ["predict", "{path}", "hello"],
    "predict from a file": ["predict", "{bundle}", "--input", "{path}.txt"],
    "predict into a file": ["predict", "{bundle}", "hello", "--output", "{path}"],
    "export a checkpoint": ["export", "{path}", "{output}"],
    "export into a folder": ["export", "{checkpoint}", "{path}"],
    "export on a file": ["export", "{checkpoint}", "{output}", "--evaluate", "{path}.csv"],
    "tokenizer": ["tokenizer", "{path}.txt", "--kind", "bpe", "--vocab-size", "300", "--output", "{output}"],
    "train": ["train", "--base", "{path}", "--train", "{path}.csv", "--dev", "{path}.csv", "--output", "{path}"],
    "push": ["push", "{path}", "org/name"],
    "pull": ["pull", "org/name", "{path}"],
    "pull by name": ["pull", "{path}", "{output}"],
}


@pytest.mark.parametrize("command", PATHS)
@pytest.mark.parametrize("path", [LONG, DEEP, "a\0b"], ids=["long", "deep", "NUL"])
def test_paths_that_no_file_can_have(
    run: Run, classifier_bundle: Path, classifier_checkpoint: Path, tmp_path: Path, command: str, path: str
) -> None:
    names = {"bundle": classifier_bundle, "checkpoint": classifier_checkpoint, "output": tmp_path / "out"}
    result = run(*(part.format(path=path, **names) for part in PATHS[command]))
    assert (result.exit_code, result.stdout) in ((1, ""), (2, ""))
    assert len(result.stderr.splitlines()[-1]) < 500
    assert "Error: " in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["predict", "-h"], ["inspect"], ["predict", "hello"]])
def test_a_full_disk_is_an_error(classifier_bundle: Path, arguments: list[str]) -> None:
    if not arguments[-1].startswith("-"):
        arguments = [arguments[0], str(classifier_bundle), *arguments[1:]]
    with Path("/dev/full").open("w") as full:
        done = _bert_export(*arguments, stdout=full)
    assert (done.returncode, done.stderr) == (1, "Error: input or output failed: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_for_results_is_an_error(classifier_bundle: Path) -> None:
    done = _bert_export("predict", str(classifier_bundle), "hello", "--output", "/dev/full", stdout=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.endswith("Error: /dev/full: cannot be written: No space left on device\n")


def _bert_export(*arguments: str, stdout: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "bert_export", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)  # type: ignore[call-overload,no-any-return] # a file or a number


INTERRUPTED = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt as error:
                {reaction}
sys.meta_path.insert(0, Interrupt())
sys.argv = ["bert-export", *{arguments!r}]
from bert_export.__main__ import main
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT to itself")
@pytest.mark.parametrize(
    ("module", "reaction", "code"),
    [
        ("click", "raise", -signal.SIGINT),
        ("tokenizers", "raise", -signal.SIGINT),
        ("onnxruntime", "raise", 1),
        ("onnxruntime", "raise ImportError('half imported') from error", 1),
        ("onnxruntime", "raise SystemError('half imported')", 1),
    ],
)
def test_ctrl_c_while_modules_are_imported(classifier_bundle: Path, module: str, reaction: str, code: int) -> None:
    """An interrupted import of a compiled module often ends in an error of its own."""
    arguments = ["predict", str(classifier_bundle), "hello"]
    program = INTERRUPTED.format(module=module, reaction=reaction, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.strip() in ("", "Aborted!")
