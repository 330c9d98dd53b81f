"""Write the graphs of a bundle, with their weights as external data."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir
from onnx_ir.external_data import convert_tensors_to_external
from onnx_ir.passes.common import ClearMetadataAndDocStringPass

from bert_runtime.bundle.manifest import Asset, sha256_file

__all__ = ["GraphFiles", "asset", "save_graph", "save_graphs"]

_MIN_EXTERNAL_BYTES = 1024
"""Smaller weights stay inside the graph's file (a judgement)."""


class GraphFiles(NamedTuple):
    """The files that a graph was written to."""

    model: Asset
    data: Asset | None
    """The external weights; `None` if all are small enough to be inside the graph's file."""


def asset(path: Path) -> Asset:
    """Return the manifest's entry for a file of the bundle."""
    return Asset(file=path.name, size_bytes=path.stat().st_size, sha256=sha256_file(path))


def save_graph(graph: ir.Model, folder: Path, name: str) -> GraphFiles:
    """Write `model.<name>.onnx`, and its weights to `model.<name>.onnx.data`."""
    return save_graphs({name: graph}, folder)[name]


def save_graphs(graphs: Mapping[str, ir.Model], folder: Path) -> dict[str, GraphFiles]:
    """Write each graph as `model.<name>.onnx`, and the weights of all to one file named after the first.

    Weights that are the same object in several graphs, as in clones, are stored once. They are external data because a
    graph's own file is limited to 2 GB and is read into memory, whereas sessions and processes map external data and
    share one copy.

    Args:
        graphs: graphs by name; they are not changed.
        folder: where to write.

    Returns:
        The files of each graph, by name.
    """
    copies = {name: graph.clone() for name, graph in graphs.items()}
    for graph in copies.values():
        ClearMetadataAndDocStringPass()(graph)  # torch records stack traces, with the paths of this machine
    weights = {
        id(value.const_value): value.const_value
        for graph in copies.values()
        for value in graph.graph.initializers.values()
        if value.const_value is not None and value.const_value.nbytes >= _MIN_EXTERNAL_BYTES
    }
    data = None
    if weights:
        data = folder / f"model.{next(iter(copies))}.onnx.data"
        external = dict(zip(weights, convert_tensors_to_external([*weights.values()], folder, data.name), strict=True))
        for graph in copies.values():
            for value in graph.graph.initializers.values():
                value.const_value = external.get(id(value.const_value), value.const_value)
    for name, graph in copies.items():
        ir.save(graph, folder / f"model.{name}.onnx")
    shared = None if data is None else asset(data)
    return {name: GraphFiles(asset(folder / f"model.{name}.onnx"), shared) for name in copies}
