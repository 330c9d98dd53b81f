"""Behaviour of all commands: help, usage errors, missing extras and invalid bundles."""

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from importlib import metadata
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from bert_export.cli import main
from bert_export.cli.errors import _EXTRAS
from bert_runtime.installation import install_command

Run = Callable[..., Result]
CopyBundle = Callable[..., Path]

READERS = {
    "inspect": [],
    "verify": [],
    "predict": ["hello"],
    "evaluate": ["data.csv"],
}
"""Commands that read a bundle, with their other arguments."""


COMMANDS = main.list_commands(click.Context(main))


@pytest.mark.parametrize("command", ["", *COMMANDS])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(run: Run, command: str, option: str) -> None:
    result = run(*filter(None, [command]), option)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Usage: ")


def test_help_lists_every_command(run: Run) -> None:
    listed = run("-h").stdout.partition("Examples:")[0]
    assert {"tokenizer", "train", "export", "inspect", "verify", "predict", "evaluate", "bench"} <= set(COMMANDS)
    assert sorted(re.findall(r"^  ([a-z][a-z-]*)  ", listed, re.MULTILINE)) == COMMANDS
    assert "Other commands:" not in listed
    assert "..." not in listed.partition("COMMAND [ARGS]...")[2]


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"bert-export, version {version('bert-export')}\n"


def test_console_script_is_installed() -> None:
    """The console script that pip installs next to the interpreter."""
    script = Path(sys.executable).with_name("bert-export")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"bert-export, version {version('bert-export')}\n")


@pytest.mark.parametrize("arguments", [["translate"], ["--verbose"], ["inspect"], ["export", "only-one"], ["train"]])
def test_wrong_usage(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: ")


@pytest.mark.parametrize("command", READERS)
def test_missing_bundle_is_reported(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("hello")
    (tmp_path / "folder").mkdir()
    for name, found in (("file", "a file"), ("folder", "none"), ("absent", "no such directory")):
        result = run(command, tmp_path / name, *READERS[command])
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == (
            f"Error: {tmp_path / name}: expected a bundle (a directory with bundle.json), found {found}; "
            "make one with: bert-export export CHECKPOINT BUNDLE\n"
        )


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda manifest: manifest.update(format_version=2), "the bundle has format version 2, this release reads up"),
        (lambda manifest: manifest.pop("task"), "manifest: missing 'task'"),
        (lambda manifest: manifest.update(max_tokens="64"), "max_tokens: expected a whole number, found '64'"),
    ],
)  # fmt: skip
def test_invalid_manifests_are_reported(
    run: Run,
    classifier_bundle: Path,
    copy_bundle: CopyBundle,
    command: str,
    edit: Callable[[dict[str, Any]], object],
    message: str,
) -> None:
    bundle = copy_bundle(classifier_bundle, edit)
    result = run(command, bundle, *READERS[command])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: {bundle / 'bundle.json'}: {message}")


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_damaged_bundles_are_reported(run: Run, classifier_bundle: Path, copy_bundle: CopyBundle, command: str) -> None:
    bundle = copy_bundle(classifier_bundle)
    with (bundle / "model.fp32.onnx").open("ab") as stream:
        stream.write(b"!")
    result = run(command, bundle, *READERS[command], "--precision", "fp32")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: {bundle / 'model.fp32.onnx'}: expected ")
    assert result.stderr.endswith("copy the bundle again\n")


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_missing_onnxruntime_names_the_extra(
    run: Run, classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = run(command, classifier_bundle, *READERS[command])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "needs the Python module 'onnxruntime', which is not installed" in result.stderr
    assert result.stderr.endswith(f"install it with: {install_command('cpu')}\n")


BARE = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
from bert_export.cli import main
main({arguments!r})
"""

TRAIN = ["train", "--base", "a", "--train", "b.csv", "--dev", "c.csv", "--output", "d"]
TOKENIZER = ["tokenizer", "corpus.txt", "--kind", "bpe", "--vocab-size", "300", "--output", "vocabulary"]
EXPORT = ["export", "checkpoint", "bundle"]
DISTILL = ["distill", "--teacher", "a", "--student", "b", "--train", "c.txt", "--output", "d"]
HEAVY = ["torch", "safetensors", "lightning", "onnx", "onnx_ir", "onnxscript"]


@pytest.mark.parametrize(
    ("arguments", "absent", "extra"),
    [
        (EXPORT, HEAVY, "export"),
        (EXPORT, ["onnx_ir"], "export"),
        (TOKENIZER, HEAVY, "export"),
        (TRAIN, HEAVY, "train"),
        (TRAIN, ["lightning"], "train"),
        (DISTILL, ["tqdm"], "train"),
    ],
    ids=["export", "export without onnx_ir", "tokenizer", "train", "train without lightning", "distill without tqdm"],
)
def test_missing_extra_error_names_the_extra_of_the_command(
    tmp_path: Path, arguments: list[str], absent: list[str], extra: str
) -> None:
    """An installation with the extra `cpu` lacks the modules in `HEAVY`. A new process has imported none of them."""
    command = [sys.executable, "-c", BARE.format(absent=absent, arguments=arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"Error: bert-export {arguments[0]} needs the Python module " in done.stderr
    assert done.stderr.endswith(f"install it with: {install_command(extra)}\n")
    assert list(tmp_path.iterdir()) == []


def test_each_optional_dependency_is_known_by_an_extra_that_installs_it() -> None:
    """Otherwise its absence would end in a traceback."""
    modules = defaultdict(set)
    for module, distributions in packages_distributions().items():
        for distribution in distributions:
            modules[distribution.lower().replace("_", "-")].add(module)
    extras: dict[str, set[str]] = defaultdict(set)
    for line in metadata.requires("bert-export") or []:
        if match := re.fullmatch(r"([\w.-]+).*; extra == .(cpu|export|train|hub|plot|bench).", line):
            extras[match[1].lower().replace("_", "-")].add(match[2])
    assert {"onnxruntime", "torch", "huggingface-hub", "tqdm"} <= extras.keys()
    for distribution, offered_by in extras.items():
        known = {_EXTRAS[module] for module in modules[distribution] if module in _EXTRAS}
        assert known, f"add a module of {distribution} to _EXTRAS"
        assert known <= offered_by
