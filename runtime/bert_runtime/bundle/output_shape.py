"""The shape of a graph's output, compared with the manifest's."""

from collections.abc import Sequence
from pathlib import Path

from bert_runtime.bundle.manifest import TensorSpec
from bert_runtime.errors import BundleError

__all__ = ["check_output_shape"]


def check_output_shape(path: Path, found: Sequence[int | str | None], expected: TensorSpec) -> None:
    """Raise `BundleError` where a graph's output has another shape than the manifest says.

    Args:
        path: the graph, for the error.
        found: sizes of the axes in the graph; a name or `None` where it varies.
        expected: the output in the manifest.
    """
    pairs = zip(found, expected.axes, strict=False)
    if len(found) != len(expected.axes) or any(a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int)):
        raise BundleError(
            f"{path}: expected an output {expected.name!r} of the shape {list(expected.axes)}, as the manifest says, "
            f"found {list(found)}; copy the bundle again, or export it again"
        )
