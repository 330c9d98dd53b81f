"""Operator profiles of ONNX Runtime. OpenVINO's side needs another environment and is not tested."""

from pathlib import Path

import onnx
from onnx.inliner import inline_local_functions

from bert_bench.experiments.operator_profile import onnxruntime_operators


def test_every_operator_is_counted_and_timed_slowest_first(classifier_bundle: Path) -> None:
    graph = classifier_bundle / "model.fp32.onnx"
    profile = onnxruntime_operators(graph, 2, 7, 3, kernels=False)
    assert profile["call_ms"] > 0
    operators = profile["operators"]
    expected = [node.op_type for node in inline_local_functions(onnx.load(graph)).graph.node]
    assert "If" not in operators
    assert operators["Attention"]["count"] == expected.count("Attention") + expected.count("If")
    for name in ("Gelu", "LayerNormalization", "MatMul"):
        assert operators[name]["count"] == expected.count(name)
    times = [totals["ms"] for totals in operators.values()]
    assert times == sorted(times, reverse=True)
    assert min(times) >= 0
