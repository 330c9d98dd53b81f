"""Pool the scores of the vocabulary as they are computed, instead of storing them for every token.

The head of sparse embeddings scores the whole vocabulary at every token, [B, S, V], and pools over the tokens: with 64
texts of 128 tokens and 30,522 tokens of the vocabulary that is 1 GB. This replaces the matmul with the token embedding,
the mask and the pooling by one call of a function of `bert_export.vocabulary_pooling`, whose largest value is a chunk
of that, and which reads the token embedding as it is stored.
"""

import onnx_ir as ir

from bert_export.fusion.mlm_gather_masks import token_embedding
from bert_export.onnx_graph import (
    Linear,
    NoMatch,
    add_initializer,
    graph_input,
    insert_before,
    linears,
    replace_value,
    scope,
)
from bert_export.vocabulary_pooling import vocabulary_function
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN
from bert_runtime.tasks import SparseEmbedding
from bert_runtime.tasks.sparse_embedding import SPARSE_ACTIVATIONS

__all__ = ["fuse_vocabulary_pooling"]

_REDUCTIONS = {"max": "ReduceMax", "sum": "ReduceSum"}


def fuse_vocabulary_pooling(graph: ir.Model, task: SparseEmbedding) -> None:
    """Replace the vocabulary's scores and their pooling by one call, in place.

    Raises:
        NoMatch: the head is not what `bert_models.heads.SparseEmbeddingHead` captures to.
    """
    head = [node for node in graph.graph if scope(node).startswith("head")]
    reductions = [node for node in head if node.op_type == _REDUCTIONS[task.pooling]]
    if len(reductions) != 1:
        raise NoMatch(f"expected one {_REDUCTIONS[task.pooling]} in the head, found {len(reductions)}")
    scores = _vocabulary_scores(graph)
    mask = graph_input(graph.graph, "attention_mask")
    assert mask is not None
    bias = scores.bias or add_initializer(graph.graph, "head.bias", scores.bias_array)
    old = reductions[0].outputs[0]
    logarithms = 1 + SPARSE_ACTIVATIONS.index(task.activation)
    (pooled,) = insert_before(
        reductions[0],
        f"Vocabulary{task.pooling.capitalize()}",
        [scores.input, token_embedding(graph, scores), bias, mask],
        like=old,
        attributes={} if task.pooling == "max" else {"logarithms": logarithms},
        domain=KERNEL_DOMAIN,
    )
    replace_value(old, pooled)
    call = pooled.producer()
    assert call is not None
    function = vocabulary_function(call)
    graph.functions[function.identifier()] = function
    graph.graph.opset_imports[KERNEL_DOMAIN] = 1


def _vocabulary_scores(graph: ir.Model) -> Linear:
    """Return the last projection, that to the vocabulary."""
    found = [linear for linear in linears(graph) if scope(linear.matmul).startswith("head")]
    if not found:
        raise NoMatch("expected a projection to the vocabulary in the head")
    return found[-1]
