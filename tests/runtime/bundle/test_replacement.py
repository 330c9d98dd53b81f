"""Bundles that are replaced while they are loaded, and processes that are killed while they replace one."""

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_runtime import BundleError, load
from bert_runtime.bundle import atomic_folders, building_folders, stable_reads
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.bundle.exchange import exchange_folders
from bert_runtime.bundle.stable_reads import read_unreplaced

_REPLACE_FOREVER = """
import itertools, shutil, sys, time
from pathlib import Path
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
sources, output, pause = sys.argv[1:3], Path(sys.argv[3]), float(sys.argv[4])
print("ready", flush=True)
for source in itertools.cycle(sources):
    with atomic_replace_dir(output) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
    time.sleep(pause)
"""


def _replacing(first: Path, second: Path, output: Path, pause: float) -> "subprocess.Popen[str]":
    """Start a process that replaces `output` by copies of two folders in turn."""
    command = [sys.executable, "-c", _REPLACE_FOREVER, str(first), str(second), str(output), str(pause)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate(timeout=60)


def _write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("a", "b"):
        (folder / name).write_text(text)
    return folder


def _hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def _exchange_or_skip(tmp_path: Path) -> None:
    if not exchange_folders(_write(tmp_path / "x", "x"), _write(tmp_path / "y", "y")):
        pytest.skip("this system or file system cannot exchange folders")


@pytest.mark.parametrize(
    "num_loads", [pytest.param(20, id="some"), pytest.param(200, id="many", marks=pytest.mark.slow)]
)
def test_loads_of_a_bundle_that_is_being_replaced_succeed(
    classifier_bundle: Path, embedding_bundle: Path, tmp_path: Path, num_loads: int
) -> None:
    _exchange_or_skip(tmp_path)
    output = Path(shutil.copytree(classifier_bundle, tmp_path / "served"))
    replacing = _replacing(embedding_bundle, classifier_bundle, output, pause=0.05)
    try:
        names = {load(output, precision="fp32", threads=1).task.name for _ in range(num_loads)}
    finally:
        _kill(replacing)
    assert names == {"text-classification", "sentence-embedding"}


@pytest.mark.parametrize("kills", [pytest.param(5, id="some"), pytest.param(60, id="many", marks=pytest.mark.slow)])
def test_a_killed_replacement_leaves_one_of_the_two_folders_whole(tmp_path: Path, kills: int) -> None:
    _exchange_or_skip(tmp_path)
    rng = random.Random(0)
    one, two = (_write(tmp_path / name, name) for name in ("one", "two"))
    output = tmp_path / "served" / "folder"
    _write(output, "one")
    for _ in range(kills):
        replacing = _replacing(one, two, output, pause=0)
        time.sleep(rng.uniform(0, 0.02))
        replacing.send_signal(signal.SIGKILL)
        replacing.communicate(timeout=60)
        assert [(output / name).read_text() for name in ("a", "b")] in (["one"] * 2, ["two"] * 2)
    with atomic_replace_dir(output) as folder:
        _write(folder, "three")
    assert _hidden(output.parent) == []


def test_the_folder_is_there_at_every_moment(tmp_path: Path) -> None:
    _exchange_or_skip(tmp_path)
    one, two = (_write(tmp_path / name, name) for name in ("one", "two"))
    output = _write(tmp_path / "served", "one")
    replacing = _replacing(one, two, output, pause=0)
    try:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            output.stat()
    finally:
        _kill(replacing)


def test_leftovers_of_live_processes_and_other_folders_are_kept(tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    others = [
        ".bundle.pictures",
        ".bundle.abcdefgh.partial.zip",
        ".bundle.x.abcdefgh.partial",
        "bundle.abcdefgh.partial",
    ]
    for name in others:
        _write(tmp_path / name, "mine")
    (tmp_path / ".bundle.abcdefgh.partial").write_text("a file")
    dead = _write(tmp_path / ".bundle.0123_xyz.partial", "half")
    with atomic_replace_dir(output) as live:
        _write(live, "live")
        with atomic_replace_dir(output) as folder:
            _write(folder, "new")
        assert live.is_dir()
        assert not dead.exists()
    assert {path.name for path in tmp_path.iterdir()} == {*others, ".bundle.abcdefgh.partial", "bundle"}
    assert (output / "a").read_text() == "live"


def test_without_exchange_the_folder_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_folders, "exchange_folders", lambda first, second: False)
    output = _write(tmp_path / "bundle", "old")
    with atomic_replace_dir(output) as folder:
        _write(folder, "new")
    assert (output / "a").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_folder_that_was_renamed_away_by_a_killed_process_is_restored(tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    _write(tmp_path / ".bundle.abcdefgh.partial.old", "old")
    _write(tmp_path / ".bundle.abcdefgh.partial", "new")
    building_folders.remove_leftovers(output)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    assert (output / "a").read_text() == "old"


def test_a_read_that_mixed_two_folders_is_repeated(tmp_path: Path) -> None:
    folder, found = _write(tmp_path / "folder", "old"), []

    def read() -> tuple[str, str]:
        first = (folder / "a").read_text()
        if not found:
            with atomic_replace_dir(folder) as new:
                _write(new, "new")
        found.append((first, (folder / "b").read_text()))
        return found[-1]

    assert read_unreplaced(folder, read) == ("new", "new")
    assert found == [("old", "new"), ("new", "new")]


def test_a_folder_that_is_always_replaced_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stable_reads, "_MAX_ATTEMPTS", 3)
    folder, calls = _write(tmp_path / "folder", "old"), []

    def read() -> None:
        calls.append(1)
        with atomic_replace_dir(folder) as new:
            _write(new, "new")

    with pytest.raises(BundleError, match="was replaced during each of 3 attempts"):
        read_unreplaced(folder, read)
    assert len(calls) == 3


def test_errors_of_a_folder_that_was_not_replaced_are_raised_at_once(tmp_path: Path) -> None:
    calls: list[int] = []

    def read() -> None:
        calls.append(1)
        raise BundleError("damaged")

    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BundleError, match="damaged"):
            read_unreplaced(folder, read)
    assert len(calls) == 2
