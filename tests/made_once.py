"""Folders that all processes of a test run share, each made by the first one that asks for it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

__all__ = ["made_once", "shared_folder"]


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """Return a folder below the one that pytest-xdist's processes have in common; without them, of this process."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder, and make it before if no process has.

    Args:
        folder: the folder, whose parent exists.
        make: called with the folder, which it creates. Other processes wait meanwhile.
    """
    done = folder.with_name(f"{folder.name}.done")
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            make(folder)
            done.touch()
    return folder
