"""The page's files, served from memory under an address that changes with their contents."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

__all__ = ["StaticFile", "StaticFiles"]

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_DIGEST_MARK = b"@digest@"
"""Stands in `index.html` for `StaticFiles.digest`."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the page."""

    content: bytes
    media_type: str


class StaticFiles:
    """All files of the page by their path. Browsers may keep them forever: a change of any changes all addresses."""

    def __init__(self) -> None:
        contents = dict(sorted(_read(files("bert_serve.page") / "static", PurePosixPath())))
        self.digest = hashlib.sha256(repr(contents).encode()).hexdigest()[:16]
        """Part of the files' address."""
        index = contents.pop("index.html").replace(_DIGEST_MARK, self.digest.encode())
        self.index = StaticFile(index, _MEDIA_TYPES[".html"])
        """The page itself."""
        self._files = {
            path: StaticFile(data, _MEDIA_TYPES[PurePosixPath(path).suffix]) for path, data in contents.items()
        }

    def get(self, digest: str, path: str) -> StaticFile | None:
        """Return a file of this version of the page; `None` where there is none."""
        return self._files.get(path) if digest == self.digest else None


def _read(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[str, bytes]]:
    """Yield path and contents of the files in a folder and below it."""
    for entry in folder.iterdir():
        inner = path / entry.name
        if entry.is_dir():
            yield from _read(entry, inner)
        elif inner.suffix in _MEDIA_TYPES:  # not what editors leave
            yield str(inner), entry.read_bytes()
