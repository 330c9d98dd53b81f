"""Files of figures that matplotlib draws: png, svg or pdf."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from bert_export.output_files import write_errors
from bert_runtime.bundle.atomic_files import atomic_path, output_problem
from bert_runtime.errors import InputError, MissingExtraError

__all__ = ["check_figure_path", "require_matplotlib", "write_figure"]

_SUFFIXES = (".png", ".svg", ".pdf")


def check_figure_path(path: Path, extra: str, purpose: str, *, kind: str = "picture") -> None:
    """Check, before anything is computed, that a figure can be drawn, where to, and in which format.

    Args:
        path: the file.
        extra: the extra of bert-export that installs matplotlib for the caller.
        purpose: what needs matplotlib, as the subject of a sentence.
        kind: what the figure is called.

    Raises:
        InputError: the suffix is not png, svg or pdf, or there cannot be such a file.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix not in _SUFFIXES:
        raise InputError(f"{path}: expected a {kind} that ends in {', '.join(_SUFFIXES)}")
    if problem := output_problem(path):
        raise InputError(problem)
    require_matplotlib(extra, purpose)


def require_matplotlib(extra: str, purpose: str) -> None:
    """Check, before anything is computed, that figures can be drawn.

    Args:
        extra: the extra of bert-export that installs matplotlib for the caller.
        purpose: what needs matplotlib, as the subject of a sentence.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", extra, purpose)


def write_figure(path: Path, save: Callable[[Path, str], None]) -> None:
    """Write a figure to a file that replaces `path` once it is complete.

    Args:
        path: the file; its suffix decides the format.
        save: writes the figure to a path in a format (`png`, `svg` or `pdf`), which the path does not show.

    Raises:
        DataError: the file cannot be written; what was there before is unchanged.
    """
    with write_errors(path), atomic_path(path) as partial:
        save(partial, path.suffix.removeprefix("."))
