"""Outline what heads make of the last layer: the mean over the tokens, and attention of the first token alone."""

import numpy as np
import onnx_ir as ir

from bert_export.function_calls import call_function
from bert_export.fusion.prune_tokens import key_mask
from bert_export.onnx_graph import NoMatch, constant, producer
from bert_export.operator_attributes import attention_scale, check_heads_and_scale

__all__ = ["MIN_NORM", "MIN_WEIGHT", "outline_first_token_attention", "outline_mean_pool"]

MIN_WEIGHT = 1e-9
"""The least sum of weights that a mean is divided by, see `bert_models.pooling.mean_pooling`."""

MIN_NORM = 1e-12
"""The least length that a vector is divided by, as in `torch.nn.functional.normalize`."""


def outline_mean_pool(division: ir.Node) -> str:
    """Outline the mean over each sequence's tokens, with its normalization if it is read for that alone.

    Raises:
        NoMatch: the node does not divide the sum of weighted tokens by the sum of the weights.
    """
    weighted = producer(_summed_tokens(division.inputs[0]), "Mul")
    x, weights = weighted.inputs
    if weights is None or _summed_tokens(_clipped(division.inputs[1], MIN_WEIGHT)) is not weights:
        raise NoMatch("expected the sum of the weights below the sum of the tokens")
    column = producer(weights, "Unsqueeze")
    mask = producer(column.inputs[0], "Cast").inputs[0]
    if constant(column.inputs[1]).tolist() not in ([-1], [2]):
        raise NoMatch("expected a weight for each token")
    if mask is None or mask.shape is None or len(mask.shape) != 2 or x is None or x.shape is None or len(x.shape) != 3:
        raise NoMatch("expected tokens [B, S, H] and a mask [B, S]")
    if mask.dtype not in (ir.DataType.BOOL, ir.DataType.INT64):
        raise NoMatch(f"expected a mask of bool or int64, found {mask.dtype}")
    last = _normalization(division.outputs[0])
    name = "MeanPool" if last is None else "MeanPoolNormalize"
    return call_function(last or division, name, [x, mask], (last or division).outputs)


def _summed_tokens(value: ir.Value | None) -> ir.Value | None:
    """Return what a sum over the tokens reads."""
    total = producer(value, "ReduceSum")
    if constant(total.inputs[1]).tolist() != [1] or total.attributes.get_int("keepdims", 1):
        raise NoMatch("expected a sum over the tokens")
    return total.inputs[0]


def _clipped(value: ir.Value | None, minimum: float) -> ir.Value | None:
    """Return what a Clip with that minimum alone reads."""
    clip = producer(value, "Clip")
    if len([bound for bound in clip.inputs if bound is not None]) != 2 or constant(clip.inputs[1]) != np.float32(
        minimum
    ):
        raise NoMatch(f"expected a minimum of {minimum}")
    return clip.inputs[0]


def _normalization(mean: ir.Value) -> ir.Node | None:
    """Return the node that divides a mean by its length, if nothing else reads it."""
    readers = {node.op_type: node for node in mean.consumers()}
    if {*readers} != {"ReduceL2", "Div"} or len(mean.consumers()) != 2 or mean.is_graph_output():
        return None
    division, length = readers["Div"], readers["ReduceL2"]
    try:
        norm = division.inputs[1]
        if norm is not None and (expand := norm.producer()) is not None and expand.op_type == "Expand":
            norm = expand.inputs[0]
        if division.inputs[0] is not mean or _clipped(norm, MIN_NORM) is not length.outputs[0]:
            return None
        axes = constant(length.inputs[1]).tolist()
    except NoMatch:
        return None
    return division if axes in ([-1], [1]) and length.attributes.get_int("keepdims", 1) == 1 else None


def outline_first_token_attention(attention: ir.Node) -> str:
    """Outline attention whose only query is the first token, see `bert_export.fusion.first_token_only`.

    Raises:
        NoMatch: there are several queries, keys and values are not of one projection, or something but a mask of keys
            is added to the scores.
    """
    query, key, value, mask = [*attention.inputs, None][:4]
    if query is None or query.shape is None or len(query.shape) != 3 or query.shape[1] != 1:
        raise NoMatch("expected a single query")
    split = producer(key, "Split")
    if [*split.outputs] != [key, value] or key is None or key.shape is None or query.shape[2] != key.shape[2]:
        raise NoMatch("expected keys and values of one projection")
    keys = key_mask(producer(mask, "Slice").inputs[0])
    if keys is None or keys.shape is None or len(keys.shape) != 2:
        raise NoMatch("expected a mask of keys")
    check_heads_and_scale(attention)
    inputs = [query, split.inputs[0], keys]
    call = {"num_heads": attention.attributes["q_num_heads"].as_int(), "scale": attention_scale(attention)}
    return call_function(attention, "FirstTokenAttention", inputs, attention.outputs, call)
