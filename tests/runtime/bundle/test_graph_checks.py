"""Graphs that would end the process are refused before ONNX Runtime opens them."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import AttributeProto, helper

from bert_runtime import BundleError, load
from bert_runtime.bundle.digest import manifest_digest
from bert_runtime.bundle.graph_checks import check_graph
from bert_runtime.bundle.manifest import Manifest, sha256_file

CopyBundle = Callable[..., Path]


def _edit_graph(bundle: Path, edit: Callable[[onnx.ModelProto], None]) -> Path:
    """Change the FP32 graph of a bundle, and its hash in the manifest, as an attacker would."""
    path = bundle / "model.fp32.onnx"
    graph = onnx.load(path, load_external_data=False)
    edit(graph)
    path.write_bytes(graph.SerializeToString())
    manifest = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    manifest["variants"][0]["model"] = {
        "file": path.name,
        "size_bytes": path.stat().st_size,
        "sha256": sha256_file(path),
    }
    manifest["manifest_sha256"] = manifest_digest(manifest)
    (bundle / "bundle.json").write_text(json.dumps(manifest), encoding="utf-8")
    return bundle


def _set_heads_of_calls(graph: onnx.ModelProto, heads: int) -> None:
    """Change the calls of the function SelfAttention, whose body hands the number on to Attention."""
    calls = [node for node in graph.graph.node if node.op_type == "SelfAttention"]
    assert calls
    for node in calls:
        for attribute in node.attribute:
            if attribute.name == "num_heads":
                attribute.i = heads


def _attention(graph: onnx.ModelProto) -> list[AttributeProto]:
    """Return the numbers of heads of Attention in the branches of SelfAttention's body."""
    (function,) = (function for function in graph.functions if function.name == "SelfAttention")
    branches = [attribute.g for node in function.node for attribute in node.attribute if attribute.HasField("g")]
    nodes = [node for branch in branches for node in branch.node]
    return [attribute for node in nodes for attribute in node.attribute if attribute.name == "kv_num_heads"]


def _set_heads_of_attention(graph: onnx.ModelProto, heads: int) -> None:
    for attribute in _attention(graph):
        attribute.ref_attr_name = ""
        attribute.i = heads


def _nest_functions(graph: onnx.ModelProto, heads: int) -> None:
    """Call SelfAttention by another function, whose default is the number of heads."""
    (inner,) = (function for function in graph.functions if function.name == "SelfAttention")
    call = helper.make_node("SelfAttention", [*inner.input], [*inner.output], domain=inner.domain, scale=0.5)
    call.attribute.append(AttributeProto(name="num_heads", ref_attr_name="n", type=AttributeProto.INT))
    outer = helper.make_function(
        inner.domain, "Outer", inner.input, inner.output, [call], inner.opset_import,
        attribute_protos=[helper.make_attribute("n", heads)],
    )  # fmt: skip
    graph.functions.append(outer)
    for node in graph.graph.node:
        if node.op_type == "SelfAttention":
            node.op_type = "Outer"
            del node.attribute[:]


@pytest.mark.parametrize("heads", [0, -1, 1 << 31, 1 << 62])
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (_set_heads_of_calls, "num_heads of SelfAttention"),
        (_set_heads_of_attention, "kv_num_heads of Attention"),
        (_nest_functions, "n of Outer"),
    ],
)
def test_attention_that_would_divide_by_zero_is_refused(
    edit: Callable[[onnx.ModelProto, int], None],
    where: str,
    kernels: bool,
    heads: int,
    classifier_bundle: Path,
    copy_bundle: CopyBundle,
) -> None:
    bundle = _edit_graph(copy_bundle(classifier_bundle), lambda graph: edit(graph, heads))
    message = f"model.fp32.onnx: expected {where} to lie in 1 to 2,147,483,647, found {heads}; export the checkpoint"
    with pytest.raises(BundleError, match=re.escape(message)):
        load(bundle, precision="fp32", kernels=kernels)


def test_number_of_heads_without_a_value_is_refused(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    """ONNX Runtime reads 0 where an attribute has no value."""

    def remove_values(graph: onnx.ModelProto) -> None:
        for attribute in _attention(graph):
            attribute.ref_attr_name = ""
            attribute.ClearField("i")

    bundle = _edit_graph(copy_bundle(classifier_bundle), remove_values)
    with pytest.raises(BundleError, match=r"kv_num_heads of Attention to lie in .* found 0"):
        load(bundle, precision="fp32")


def test_no_heads_of_another_operator_are_accepted(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    """0 is RotaryEmbedding's default."""
    node = helper.make_node("RotaryEmbedding", ["x", "cos", "sin"], ["y"], num_heads=0)
    bundle = _edit_graph(copy_bundle(classifier_bundle), lambda graph: graph.graph.node.append(node))
    check_graph(bundle, Manifest.read(bundle).variant("fp32"))
