"""The last layer on the first token alone: where that fusion fires, and where it must not."""

import pytest
from torch import Tensor, nn

from bert_export.capture import capture
from bert_export.errors import FusionError
from bert_export.fusion import fuse
from bert_export.fusion.attention import fuse_attention
from bert_export.fusion.first_token_only import fuse_first_token_only
from bert_export.onnx_graph import NoMatch, operators, scope

from ..toy_models import CLASSIFIER, CONFIG, MEAN, captured, toy_model


def test_last_layer_has_one_query() -> None:
    graph = captured(CLASSIFIER)
    fuse(graph, CONFIG, CLASSIFIER)
    queries = [node.inputs[0].shape[1] for node in operators(graph, "Attention")]
    assert [isinstance(size, int) and size == 1 for size in queries] == [False, False, True]
    last = [node.outputs[0].shape[1] for node in operators(graph, "MatMul") if "layers.2" in scope(node)]
    assert sum(size == 1 for size in last) == 4  # query, attention output, feed-forward up and down


def test_head_that_reads_all_tokens_does_not_match() -> None:
    graph = captured(MEAN)
    for node in operators(graph, "Attention"):
        fuse_attention(node)
    with pytest.raises(NoMatch, match="expected the head to gather position 0"):
        fuse_first_token_only(graph)


class _FirstAndMean(nn.Module):
    """A head that reads the first token, and all tokens too."""

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        return hidden[:, 0] + hidden.mean(dim=1)


def test_head_that_reads_the_first_token_and_all_tokens_does_not_match() -> None:
    model = toy_model(CLASSIFIER)
    model.head = _FirstAndMean()
    graph = capture(model)
    for node in operators(graph, "Attention"):
        fuse_attention(node)
    with pytest.raises(NoMatch, match="stops after 0 nodes, before any attention"):
        fuse_first_token_only(graph)


class _SecondToken(nn.Module):
    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        return hidden[:, 1]


def test_head_that_reads_the_second_token_does_not_match() -> None:
    model = toy_model(CLASSIFIER)
    model.head = _SecondToken()
    with pytest.raises(FusionError, match=r"first_row \(expected 1, found 0\)"):
        fuse(capture(model), CONFIG, CLASSIFIER)
