"""Pack the rows of a graph for the CPU: kernels compute nothing behind a sequence's last token.

A batch's sequences are padded to the longest, and everything between attention and attention works on each row by
itself. So the kernel of the embeddings may pack the rows [B, S, H] to [1, N, H], those of attention and pooling read
them, and what else reads the tokens of a sequence gets them back with padding. The answers are the same.

Without kernels the same functions work on rows with padding: no operator between them asks how the rows lie, and a
library has kernels for all functions that read or write packed rows, or for none.
"""

from collections.abc import Mapping

import onnx_ir as ir

from bert_export.fusion.first_token_only import selects_first_token
from bert_export.kernel_functions import FUNCTIONS
from bert_export.onnx_graph import NoMatch, graph_input, insert_before, operators, tidy
from bert_export.outline_embeddings import EMBEDDING_FUNCTIONS, embedding_function, is_packed
from bert_export.pruning_function import KEEP_TOKENS
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = ["has_packed_rows", "pack_rows"]

_MASK = "attention_mask"

_ROW_BY_ROW = ("Linear", "Bf16Linear", "QuantizedLinear", "AddNorm", "AddPreNorm")
"""How the names of kernels' functions begin that work on each row by itself."""

_ROW_BY_ROW_OPERATORS = (
    "Add", "Cast", "DequantizeLinear", "Gelu", "Mul", "QuantizeLinear", "Relu", "Sigmoid", "Tanh",
)  # fmt: skip
"""Element-wise operators that do."""


def has_packed_rows(graph: ir.Model) -> bool:
    """Return whether kernels of a graph's embeddings pack the rows."""
    return any(is_packed(call) for name in EMBEDDING_FUNCTIONS for call in operators(graph, name))


def pack_rows(graph: ir.Model) -> tuple[ir.Model, Mapping[str, int]]:
    """Pack the rows of a graph that `outline_kernels` returned.

    A graph stays as it is if its embeddings or an attention have no kernel, if attention has another mask than that of
    the batch, or if something without a kernel reads quantized tokens.

    Args:
        graph: the graph; it is not changed.

    Returns:
        A copy, which shares its weights, or `graph`; and the number of calls of each function that was added.
    """
    packed = graph.clone()
    try:
        return packed, _Packing(packed).pack()
    except NoMatch:
        return graph, {}


def _reads_packed(node: ir.Node) -> bool:
    """Return whether a node is a function that mixes the tokens of a sequence, and whose kernel reads packed rows."""
    return node.domain == KERNEL_DOMAIN and (
        node.op_type.endswith(("Attention", "VocabularyMax")) or node.op_type.startswith(("MeanPool", KEEP_TOKENS.name))
    )


def _row_axes(mask: ir.Value) -> list[str]:
    """Return the names of the axes of rows: [B, S] of a mask, or [1, N] where they are packed."""
    assert mask.shape is not None
    return [f"rows of {size}" for size in mask.shape]


def _is_attention_of_all(node: ir.Node) -> bool:
    """Return whether a node is attention of more than one token of each sequence."""
    query = node.inputs[0] if node.inputs else None
    return node.op_type.endswith("Attention") and (query is None or query.shape is None or query.shape[1] != 1)


def _works_on_rows(node: ir.Node) -> bool:
    """Return whether a node, what else it reads being packed or constant, computes each row of its inputs by itself."""
    if node.domain == KERNEL_DOMAIN:
        return node.op_type.startswith(_ROW_BY_ROW)
    constants = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
    match node.op_type:
        case "MatMul" | "MatMulIntegerToFloat":
            return node.inputs[0] is not None and node.inputs[0].const_value is None
        case "LayerNormalization":
            return node.attributes.get_int("axis", -1) in (-1, 2)
        case _:  # constants are alike for all rows
            return node.op_type in _ROW_BY_ROW_OPERATORS and all(set(array.shape[:-1]) <= {1} for array in constants)


class _Packing:
    """The rewrite of one graph, in place."""

    def __init__(self, graph: ir.Model) -> None:
        calls = [call for name in EMBEDDING_FUNCTIONS for call in operators(graph, name)]
        mask = graph_input(graph.graph, _MASK)
        if len(calls) != 1 or mask is None or operators(graph, "If"):
            raise NoMatch(f"expected embeddings, a mask and no branch, found {len(calls)} calls and {mask}")
        self._graph = graph
        self._embeddings = calls[0]
        self._mask = mask
        self._masks: dict[ir.Value, ir.Value] = {}
        """The mask of the packed rows of each value; of a choice of rows, that of the rows that stay."""
        self._unpacked: dict[ir.Value, ir.Value] = {}
        self._first_rows: dict[ir.Value, ir.Value] = {}

    def pack(self) -> Mapping[str, int]:
        """Rewrite the graph, and return the number of calls of each function that was added.

        Raises:
            NoMatch: an attention cannot read packed rows; the graph is of no use then.
        """
        call = self._embeddings
        call.resize_inputs(len(call.inputs) + 1)
        call.replace_input_with(len(call.inputs) - 1, self._mask)
        function = embedding_function(call)
        self._graph.functions[function.identifier()] = function
        self._mark(call, self._mask)
        for node in list(self._graph.graph):
            if node is not call:
                self._visit(node)
        self._unpack_outputs()
        added = {name: len(operators(self._graph, name)) for name in ("FirstRows", "UnpackRows")}
        added = {name: count for name, count in added.items() if count}
        for function in map(FUNCTIONS.__getitem__, added):
            self._graph.functions[function.identifier()] = function
        tidy(self._graph)
        return added

    def _mark(self, node: ir.Node, mask: ir.Value) -> None:
        """Note that all outputs of a node are packed rows."""
        for output in node.outputs:
            self._masks[output] = mask
            if output.shape is not None:
                output.shape = ir.Shape([*_row_axes(mask), output.shape[2]])

    def _visit(self, node: ir.Node) -> None:
        read = [value for value in node.inputs if value in self._masks]
        if _is_attention_of_all(node) and not (read and _reads_packed(node)):
            raise NoMatch(f"expected attention that reads packed rows, found {node.op_type}")
        if not read:
            return
        if self._is_row_by_row(node):
            self._mark(node, self._masks[read[0]])
        elif _reads_packed(node):
            self._read_packed(node, read[0])
        elif node.op_type == "GatherND" and len(read) == 2:  # rows and a choice of KeepTokens
            self._mark(node, self._masks[read[1]])
        elif selects_first_token(node):
            self._select_first_rows(node)
        else:
            for value in read:
                unpacked = self._unpack(value, node)
                for index in [index for index, source in enumerate(node.inputs) if source is value]:
                    node.replace_input_with(index, unpacked)

    def _is_row_by_row(self, node: ir.Node) -> bool:
        sources = [value for value in node.inputs if value is not None and value.const_value is None]
        return _works_on_rows(node) and len({self._masks.get(value) for value in sources}) == 1

    def _read_packed(self, call: ir.Node, rows: ir.Value) -> None:
        """Check that a function has the mask of the packed rows that it reads, and note what it returns."""
        if self._masks[rows] not in map(self._same_mask, call.inputs):
            raise NoMatch(f"expected {call.op_type} with the mask of its rows")
        if call.op_type == KEEP_TOKENS.name:
            indices, kept_mask = call.outputs[:2]
            indices.shape = ir.Shape([*_row_axes(kept_mask), 1])
            self._masks[indices] = kept_mask
        elif _is_attention_of_all(call):
            self._mark(call, self._masks[rows])

    def _same_mask(self, value: ir.Value | None) -> ir.Value | None:
        """Return the batch's mask for a cast of it; any other value as it is."""
        node = value.producer() if value is not None else None
        return self._mask if node is not None and node.op_type == "Cast" and node.inputs[0] is self._mask else value

    def _select_first_rows(self, node: ir.Node) -> None:
        """Select each sequence's first token [B, 1, H] from packed rows."""
        source = node.inputs[0]
        assert source is not None
        assert source.shape is not None
        mask = self._masks[source]
        assert mask.shape is not None
        if mask not in self._first_rows:
            ints, shape = ir.Value(type=ir.TensorType(ir.DataType.INT64)), ir.Shape([mask.shape[0], 1, 2])
            (self._first_rows[mask],) = insert_before(
                node, "FirstRows", [mask], like=ints, shapes=[shape], domain=KERNEL_DOMAIN
            )
        shape = ir.Shape([mask.shape[0], 1, source.shape[2]])
        (first,) = insert_before(node, "GatherND", [source, self._first_rows[mask]], like=source, shapes=[shape])
        if node.op_type == "Slice":
            node.outputs[0].replace_all_uses_with(first)
        else:
            node.replace_input_with(0, first)

    def _unpack(self, rows: ir.Value, reader: ir.Node) -> ir.Value:
        """Return the tokens [B, S, H] of packed rows, inserted before the first node that reads them."""
        if rows not in self._unpacked:
            mask = self._masks[rows]
            if rows.dtype != ir.DataType.FLOAT or rows.shape is None or mask.shape is None:
                raise NoMatch(f"expected float32 rows before {reader.op_type}, found {rows.dtype}")
            shape = ir.Shape([*mask.shape, rows.shape[2]])
            (self._unpacked[rows],) = insert_before(
                reader, "UnpackRows", [rows, mask], like=rows, shapes=[shape], domain=KERNEL_DOMAIN
            )
        return self._unpacked[rows]

    def _unpack_outputs(self) -> None:
        """Unpack the outputs of the graph that are packed rows."""
        graph = self._graph.graph
        end = ir.node("Identity", [self._mask])
        graph.append(end)
        for index, output in enumerate(graph.outputs):
            if output in self._masks:
                unpacked = self._unpack(output, end)
                output.name, unpacked.name = f"packed {output.name}", output.name
                graph.outputs[index] = unpacked
        graph.remove(end, safe=True)
