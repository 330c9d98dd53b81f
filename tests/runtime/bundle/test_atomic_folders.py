"""Atomic replacement of folders."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.bundle.contents import replacement_problem
from bert_runtime.errors import BertError


def write(folder: Path, text: str) -> None:
    (folder / "file").write_text(text)


def test_the_folder_appears_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    for text in ("one", "two"):
        with atomic_replace_dir(target) as folder:
            write(folder, text)
            assert not target.exists() or (target / "file").read_text() == "one"
        assert (target / "file").read_text() == text
    assert [path.name for path in target.parent.iterdir()] == ["b"]


def test_an_error_leaves_everything_unchanged(tmp_path: Path) -> None:
    with atomic_replace_dir(tmp_path / "kept") as folder:
        write(folder, "precious")
    for target in (tmp_path / "kept", tmp_path / "new" / "deep" / "folder"):
        with pytest.raises(RuntimeError, match="on the way"), atomic_replace_dir(target) as folder:
            write(folder, "half")
            raise RuntimeError("on the way")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").read_text() == "precious"


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    problem = partial(replacement_problem, output, force=True)
    refused = pytest.raises(BertError, match="not a bundle; choose another path; the result is kept in")
    with refused as raised, atomic_replace_dir(output, problem) as folder:
        write(folder, "built")
        output.mkdir()
        (output / "thesis").write_text("of somebody else")
    assert (output / "thesis").read_text() == "of somebody else"
    (kept,) = (path for path in tmp_path.iterdir() if path != output)
    assert str(raised.value).endswith(f" {kept}")
    assert kept.name.startswith("bundle.")
    assert (kept / "file").read_text() == "built"
    with pytest.raises(BertError, match=r"not a bundle; choose another path$"), atomic_replace_dir(output, problem):
        pytest.fail("the block must not run")
    assert sorted(tmp_path.iterdir()) == sorted((output, kept))


def test_sigterm_leaves_nothing_behind(tmp_path: Path) -> None:
    script = """
import signal, sys
from pathlib import Path
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
with atomic_replace_dir(Path(sys.argv[1])) as folder:
    (folder / "file").write_text("half")
    try:
        signal.raise_signal(signal.SIGTERM)
    except BaseException:
        print("an exception reached the block")
"""
    command = [sys.executable, "-c", script, str(tmp_path / "new" / "deep")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGTERM, "", "")
    assert list(tmp_path.iterdir()) == []


def test_the_sigterm_handler_is_restored(tmp_path: Path) -> None:
    with atomic_replace_dir(tmp_path / "new") as folder:
        write(folder, "whole")
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_sigterm_handler_of_the_program_is_kept(tmp_path: Path) -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with atomic_replace_dir(tmp_path / "new") as folder:
            signal.raise_signal(signal.SIGTERM)
            write(folder, "whole")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
    assert (tmp_path / "new" / "file").read_text() == "whole"


def test_an_error_keeps_folders_written_next_to_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), atomic_replace_dir(tmp_path / "bundles" / "a"):
        with atomic_replace_dir(tmp_path / "bundles" / "b") as other:
            write(other, "finished")
        raise RuntimeError
    assert (tmp_path / "bundles" / "b" / "file").read_text() == "finished"
    assert [path.name for path in (tmp_path / "bundles").iterdir()] == ["b"]


def test_folders_that_cannot_be_written_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BertError, match="cannot be written"), atomic_replace_dir(tmp_path / "file" / "below"):
        pytest.fail("the block must not run")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BertError, match="is or contains the current directory"), atomic_replace_dir(Path()):
        pytest.fail("the block must not run")


def test_a_full_disk_is_a_bert_error(tmp_path: Path) -> None:
    with pytest.raises(BertError, match=r"cannot be written: .*No space left"), atomic_replace_dir(tmp_path / "new"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_replace_dir(tmp_path / "link") as folder:
        write(folder, "new")
    assert (tmp_path / "real" / "file").read_text() == "new"
    assert (tmp_path / "link").is_symlink()


def test_the_umask_is_respected(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_replace_dir(tmp_path / "new"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o750
