"""The branch around attention's mask: where it is added, and which batches take it."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bert_export.errors import FusionError
from bert_export.fusion import add_padding_branch, expected_fusions
from bert_export.onnx_graph import operators
from bert_export.parity import check_parity, probe_batches
from bert_runtime.tasks import Task

from ..toy_models import CLASSIFIER, CONFIG, MEAN, fused, graph_runner


def counts(task: Task) -> dict[str, dict[str, int]]:
    return {name: {"expected": number, "found": number} for name, number in expected_fusions(CONFIG, task).items()}


@pytest.mark.parametrize(("task", "branches"), [(CLASSIFIER, 2), (MEAN, 3)], ids=["classifier", "mean"])
def test_every_attention_of_several_queries_gets_a_branch(task: Task, branches: int, tmp_path: Path) -> None:
    model, graph = fused(task)
    before = len(operators(graph, "Attention"))
    branched, fusions = add_padding_branch(graph, counts(task))
    assert fusions["padding_branch"] == {"expected": branches, "found": branches}
    assert fusions["attention"] == counts(task)["attention"]
    assert len(operators(branched, "Attention")) == before - branches
    assert len(operators(graph, "Attention")) == before  # the graph itself is not changed
    check_parity(model, graph_runner(branched, tmp_path / "branched.onnx"), 32)


def bodies(graph: ir.Model, branch: str) -> list[ir.Node]:
    return [node.attributes[branch].as_graph()[0] for node in operators(graph, "If")]


def test_only_batches_without_padding_skip_the_mask(tmp_path: Path) -> None:
    model, graph = fused(MEAN)
    branched, _ = add_padding_branch(graph, counts(MEAN))
    assert [len(node.inputs) for node in bodies(branched, "then_branch")] == [3, 3, 3]
    assert all(node.inputs[3] is not None for node in bodies(branched, "else_branch"))
    wrong = branched.clone()
    for node in bodies(wrong, "then_branch"):
        node.attributes["scale"] = ir.AttrFloat32("scale", 5.0)
    right, changed = (
        graph_runner(graph, tmp_path / f"{name}.onnx") for name, graph in (("right", branched), ("wrong", wrong))
    )
    differs = {
        kind: bool(np.abs(right(batch) - changed(batch)).max() > 1e-4)
        for kind, batch in probe_batches(model, 32).items()
        if batch.attention_mask.shape[1] > 1
    }
    assert differs == {
        "unpadded": True, "longest": True, "right-padded": False, "left-padded": False, "holes": False,
    }  # fmt: skip


def test_unexpected_number_of_branches_is_an_error() -> None:
    _, graph = fused(MEAN)
    fusions = {**counts(MEAN), "attention": {"expected": 4, "found": 4}}
    with pytest.raises(FusionError, match=r"padding_branch \(expected 4, found 3\)"):
        add_padding_branch(graph, fusions)
