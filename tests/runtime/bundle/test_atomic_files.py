"""Files that are replaced whole or not at all."""

import stat
from pathlib import Path

import pytest

from bert_runtime.bundle.atomic_files import atomic_path, atomic_write


def test_a_file_is_replaced_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with atomic_path(path) as partial:
        partial.write_bytes(b"new")
        assert partial.parent == tmp_path
        assert path.read_bytes() == b"old"
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"a.bin": b"new"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_alone(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_path(path) as partial:
        partial.write_bytes(b"half")
        raise error
    with pytest.raises(error), atomic_write(path) as stream:
        stream.write("half")
        raise error
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"a.bin": b"old"}


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with atomic_write(path) as last, atomic_write(path) as first:
        last.write("long " * 9)
        first.write("short")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"a.txt": "long " * 9}


def test_a_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a.bin"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "a.txt")
    for content in ("first", "second"):
        with atomic_write(link) as stream:
            stream.write(content)
        assert link.is_symlink()
        assert (tmp_path / "folder" / "a.txt").read_text() == content


def test_text_keeps_the_permissions_of_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.touch(mode=0o600)
    with atomic_write(path) as stream:
        stream.write("private")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
