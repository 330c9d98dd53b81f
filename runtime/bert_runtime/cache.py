"""The user's cache folder."""

import os
from pathlib import Path

__all__ = ["cache_dir"]


def cache_dir(name: str) -> Path:
    """Return `bert-export/<name>` below `XDG_CACHE_HOME`, by default below `~/.cache`; the folder need not exist.

    Raises `RuntimeError` where neither the variable nor a home directory is known.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert-export" / name
