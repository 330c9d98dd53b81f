"""The journal of a search: what has been done, so that a killed search goes on where it was."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bert_models.errors import CompressionError
from bert_runtime.bundle.atomic_files import atomic_write

__all__ = ["JOURNAL_NAME", "Journal", "is_unfinished"]

JOURNAL_NAME = "candidates.jsonl"
"""The journal's file in the folder of a search: a JSON object per line."""

_FINISHED = "finished"
"""Key of the last entry of a search that has ended."""


class Journal:
    """Remembers results by key in a file: each is a line, written when it is there.

    Args:
        path: the file; a last line that was not written whole is dropped.
        request: what is searched for: the first line. A journal of another request is not continued.
        clock: the time in seconds.

    Raises:
        CompressionError: the file is a journal of another request, or none.
    """

    def __init__(self, path: Path, request: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._values: dict[str, Any] = {}
        self._past_s = 0.0
        entries = _read(path)
        if entries and entries[0].get("request") != request:
            raise CompressionError(
                f"{path}: the folder has another search ({_differences(entries[0].get('request'), request)}); repeat "
                f"its command, or start over with --force"
            )
        for entry in entries[1:]:
            self._values[entry["key"]] = entry["value"]
            self._past_s = entry["elapsed_s"]
        self._start_s = clock()
        kept = entries or [{"request": dict(request)}]
        with atomic_write(path) as stream:
            stream.writelines(_line(entry) for entry in kept)

    @property
    def elapsed_s(self) -> float:
        """Seconds that the search has taken, in all of its processes."""
        return self._past_s + self._clock() - self._start_s

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier process has done a part."""
        return self._past_s > 0

    def remember(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the value of `key`; compute and store it, as JSON, if there is none yet."""
        if key not in self._values:
            self._values[key] = value = compute()
            entry = {"key": key, "elapsed_s": round(self.elapsed_s, 2), "value": value}
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(_line(entry))
        return self._values[key]

    def knows(self, key: str) -> bool:
        """Return whether there is a value of `key`."""
        return key in self._values

    def count(self, prefix: str) -> int:
        """Return how many keys begin with `prefix`."""
        return sum(key.startswith(prefix) for key in self._values)

    def finish(self) -> None:
        """Remember that the search has ended, also if it had before and went on with more time."""
        self._values.pop(_FINISHED, None)
        self.remember(_FINISHED, lambda: True)


def is_unfinished(path: Path, request: Mapping[str, Any]) -> bool:
    """Return whether a file is the journal of a request whose search was interrupted."""
    try:
        entries = _read(path)
    except CompressionError:
        return False
    return bool(entries) and entries[0].get("request") == request and entries[-1].get("key") != _FINISHED


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a journal; none if there is no file."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    entries: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            if number == len(lines) > 1:
                break  # the process was killed while it wrote
            raise CompressionError(f"{path}:{number}: expected JSON; start over with --force") from None
        if not isinstance(entry, dict) or not entry.keys() >= ({"key", "elapsed_s", "value"} if entries else set()):
            raise CompressionError(
                f"{path}:{number}: expected an object with key, elapsed_s and value, found {line:.60}; start over with "
                "--force"
            )
        entries.append(entry)
    return entries


def _line(entry: Mapping[str, Any]) -> str:
    """Return an entry as a line of ASCII: a part of it is never half a character, and has no other line break."""
    return json.dumps(entry) + "\n"


def _differences(before: Any, now: Mapping[str, Any]) -> str:
    """Describe in what two requests differ."""
    if not isinstance(before, dict):
        return "which cannot be read"
    differing = [key for key in {**now, **before} if key not in before or key not in now or before[key] != now[key]]
    return "; ".join(f"{key} was {_shown(before, key)}, is now {_shown(now, key)}" for key in differing)


def _shown(request: Mapping[str, Any], key: str) -> str:
    return f"{request[key]!r:.60}" if key in request else "not there"
