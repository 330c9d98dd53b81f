"""The conditions of a result: when, on which machines and by which commands its files were made."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_bench.documentation.catalog import Result
from bert_bench.errors import DocumentationError
from bert_bench.reports.titles import machine_title

__all__ = ["Facts", "read_facts"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Conditions of all files of a result."""

    dates: tuple[str, ...]
    """Days in ascending order, ISO 8601."""
    machines: tuple[str, ...]
    """Processors, cores and threads."""
    commits: tuple[str, ...]
    commands: tuple[str, ...]
    """Different commands, in the order of the files."""

    @property
    def date(self) -> str:
        """The day, or the first and the last."""
        return " to ".join(dict.fromkeys((self.dates[0], self.dates[-1])))

    @property
    def programs(self) -> tuple[str, ...]:
        """The commands without their arguments."""
        words = (command.split() for command in self.commands)
        return tuple(dict.fromkeys(" ".join(w[: 3 if w[0] == "python" else 2]) for w in words))


def read_facts(path: Path, result: Result, renamed: Mapping[str, str]) -> Facts:
    """Read the conditions of a result.

    Args:
        path: its file, or the folder with its files.
        result: its entry in the catalog.
        renamed: today's names of modules by older ones.

    Raises:
        DocumentationError: a file cannot be read or states no conditions.
    """
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    conditions = [_conditions(file) for file in files]
    return Facts(
        dates=tuple(sorted({str(found["started_at"])[:10] for found in conditions})),
        machines=tuple(dict.fromkeys(map(_machine, conditions))),
        commits=tuple(dict.fromkeys(str(found.get("commit") or result.commit) for found in conditions)),
        commands=tuple(dict.fromkeys(_command(found["argv"], renamed) for found in conditions)),
    )


def _conditions(file: Path) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))["conditions"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DocumentationError(
            f"{file}: expected a result with conditions: {type(error).__name__}: {error}"
        ) from None
    return found


def _command(argv: Sequence[str], renamed: Mapping[str, str]) -> str:
    """Return a command line, with the program's name in place of its path and modules by today's names."""
    return shlex.join((Path(argv[0]).name, *(renamed.get(argument, argument) for argument in argv[1:])))


def _machine(conditions: Mapping[str, Any]) -> str:
    threads = conditions["threads"]
    return f"{machine_title(conditions['machine'])}, {threads} thread{'s' * (threads > 1)}"
