"""Checks of a graph before ONNX Runtime opens it."""

from pathlib import Path

from bert_runtime.bundle.manifest import AttentionGraph, Variant
from bert_runtime.bundle.onnx_file import OnnxFile, Parameter, read_onnx_file
from bert_runtime.errors import BundleError

__all__ = ["check_graph"]

_HEAD_COUNTS: frozenset[Parameter] = frozenset({("Attention", "q_num_heads"), ("Attention", "kv_num_heads")})
"""Attributes that ONNX Runtime (1.31.1) divides by as 32-bit integers, without looking at them: 0 ends the process."""


def check_graph(bundle: Path, entry: Variant | AttentionGraph) -> None:
    """Check the graph of an entry of the manifest.

    Raises:
        BundleError: the graph is damaged, reads a file that the manifest does not list, or has attention with a number
            of heads that ends the process.
    """
    path = bundle / entry.model.file
    contents = read_onnx_file(path)
    listed = None if entry.external_data is None else entry.external_data.file
    if unlisted := sorted(contents.external_files - {listed}):
        expected = "no external data" if listed is None else repr(listed)
        raise BundleError(
            f"{path}: the graph reads weights from {', '.join(map(repr, unlisted))}, and the manifest lists {expected} "
            f"for {entry.title}; only files with a hash in the manifest are read: export the checkpoint again"
        )
    for operator, attribute in sorted(_head_counts(contents) & contents.not_positive.keys()):
        raise BundleError(
            f"{path}: expected {attribute} of {operator} to lie in 1 to 2,147,483,647, found "
            f"{contents.not_positive[operator, attribute]}; export the checkpoint again"
        )


def _head_counts(contents: OnnxFile) -> set[Parameter]:
    """Return the attributes that become one of `_HEAD_COUNTS`, by way of the functions of the graph."""
    found, pending = set[Parameter](), [*_HEAD_COUNTS]
    while pending:
        parameter = pending.pop()
        if parameter not in found:
            found.add(parameter)
            pending += contents.references.get(parameter, ())
    return found
