"""How this installation of bert-export is extended, for messages that name a missing extra."""

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["install_command"]

DISTRIBUTION = "bert-export"


def install_command(extra: str) -> str:
    """Return the shell command that adds one of bert-export's extras to this installation.

    It installs from where bert-export itself came from (PEP 610), so that it also works for a clone or a wheel file.
    Where that is unknown or gone, it names the distribution.
    """
    origin = _origin()
    location = _location(origin)
    if location is None:
        return f"pip install {shlex.quote(f'{DISTRIBUTION}[{extra}]')}"
    if isinstance(location, Path):
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}{shlex.quote(f'{location}[{extra}]')}"
    return f"pip install {shlex.quote(f'{DISTRIBUTION}[{extra}] @ {location}')}"


def _origin() -> dict[str, Any]:
    """Return what the installer recorded as the direct URL of this installation; empty for releases of an index."""
    from importlib.metadata import PackageNotFoundError, distribution  # takes 20 ms, which inference does not need

    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return origin if isinstance(origin, dict) and isinstance(origin.get("url"), str) else {}


def _location(origin: dict[str, Any]) -> Path | str | None:
    """Return the folder or file that was installed, or else its URL; `None` where there is none, or not any more."""
    if "url" not in origin:
        return None
    url = urlsplit(origin["url"])
    if url.scheme == "file" and "vcs_info" not in origin:
        from urllib.request import url2pathname  # takes 30 ms

        path = Path(url2pathname(url.path))
        return path if path.exists() else None
    version_control = origin.get("vcs_info")
    if version_control is None:
        return url.geturl()
    revision = version_control.get("requested_revision") or version_control["commit_id"]
    return f"{version_control['vcs']}+{url.geturl()}@{revision}"
