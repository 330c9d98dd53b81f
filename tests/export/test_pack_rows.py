"""Packed rows of whole graphs: the same answers for every kind of mask, and graphs that stay as they are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bert_export.fusion import add_padding_branch, fuse
from bert_export.fusion.prune_tokens import prune_tokens
from bert_export.onnx_graph import operators
from bert_export.outline_kernels import lower_for_cpu, outline_kernels
from bert_export.pack_rows import has_packed_rows, pack_rows
from bert_export.parity import probe_batches
from bert_models import EncoderConfig
from bert_models.pruning_schedule import TokenPruning
from bert_runtime.cpu.session import Session
from bert_runtime.tasks import FillMask, QuestionAnswering, SparseEmbedding, Task, TokenClassification
from bert_runtime.tokenization import Batch

from ..queries_without_keys import skip_where_queries_without_keys_differ
from .test_kernel_functions import quantized
from .toy_models import CLASSIFIER, CLS, CONFIG, DISENTANGLED, MEAN, MODERN, RELATIVE, captured, toy_model

EVEN = replace(CONFIG, intermediate_size=40)
PRUNED = replace(EVEN, max_positions=72, token_pruning=TokenPruning.parse("1:0.5,2:0.25"))
SLOW = pytest.mark.slow
SPARSE = SparseEmbedding(vocab_size=61)
TAGGER = TokenClassification(labels=("a", "b", "c"))


def assert_same_answers(padded: ir.Model, packed: ir.Model, task: Task, config: EncoderConfig, folder: Path) -> None:
    """Assert that two graphs compute the same bits, with native kernels and without."""
    for name, graph in (("padded", padded), ("packed", packed)):
        ir.save(graph, folder / f"{name}.onnx")
    for kernels in (True, False):
        runs = [Session(folder / f"{name}.onnx", task.output, 2, kernels=kernels).run for name in ("padded", "packed")]
        batches = probe_batches(toy_model(task, config), config.max_tokens)
        one = Batch(*(array[1:2] for array in batches["right-padded"]))
        for kind, batch in {**batches, "one with padding": one}.items():
            expected, found = (run(batch) for run in runs)
            assert found.shape == expected.shape
            if found.shape[:2] == batch.input_ids.shape:
                found, expected = (outputs[batch.attention_mask > 0] for outputs in (found, expected))
            np.testing.assert_array_equal(found, expected, err_msg=f"{kind}, {kernels=}")


@pytest.mark.parametrize(
    ("config", "task", "added"),
    [
        (EVEN, CLASSIFIER, {"FirstRows": 1}),
        pytest.param(EVEN, CLS, {"FirstRows": 1}, marks=SLOW),
        (EVEN, MEAN, {}),
        (EVEN, TAGGER, {"UnpackRows": 1}),
        pytest.param(EVEN, QuestionAnswering(), {"UnpackRows": 1}, marks=SLOW),
        (EVEN, FillMask(mask_token="[MASK]", mask_token_id=5), {"UnpackRows": 1}),
        (EVEN, SPARSE, {}),
        pytest.param(EVEN, replace(SPARSE, pooling="sum"), {"UnpackRows": 1}, marks=SLOW),
        pytest.param(replace(EVEN, family="distilbert", type_vocab_size=0), CLASSIFIER, {"FirstRows": 1}, marks=SLOW),
        (RELATIVE, MEAN, {}),
        pytest.param(RELATIVE, CLASSIFIER, {"FirstRows": 1, "UnpackRows": 1}, marks=SLOW),
        pytest.param(MODERN, MEAN, {}, marks=SLOW),
        (MODERN, CLASSIFIER, {"FirstRows": 1, "UnpackRows": 1}),
        (DISENTANGLED, MEAN, {}),
        pytest.param(DISENTANGLED, TAGGER, {"UnpackRows": 1}, marks=SLOW),
    ],
    ids=[
        "bert classifier",
        "bert cls",
        "bert mean",
        "bert tagger",
        "bert spans",
        "bert fill-mask",
        "bert sparse",
        "bert sparse sum",
        "distilbert classifier",
        "mpnet mean",
        "mpnet classifier",
        "modernbert mean",
        "modernbert classifier",
        "deberta mean",
        "deberta tagger",
    ],
)
def test_packed_rows_change_no_answer(config: EncoderConfig, task: Task, added: dict[str, int], tmp_path: Path) -> None:
    if config == MODERN:
        skip_where_queries_without_keys_differ()
    graph = captured(task, config)
    padded, _ = outline_kernels(add_padding_branch(graph, fuse(graph, config, task))[0])
    before = [(node.op_type, len(node.inputs)) for node in padded.graph]
    packed, calls = pack_rows(padded)
    assert calls == added
    assert has_packed_rows(packed)
    assert not has_packed_rows(padded)
    assert [(node.op_type, len(node.inputs)) for node in padded.graph] == before  # the graph itself is not changed
    assert [value.name for value in packed.graph.outputs] == [value.name for value in padded.graph.outputs]
    assert_same_answers(padded, packed, task, config, tmp_path)


@pytest.mark.int8_operators
@pytest.mark.parametrize("task", [CLASSIFIER, MEAN, TAGGER, SPARSE], ids=["classifier", "mean", "tagger", "sparse"])
def test_packed_rows_change_no_answer_of_int8(task: Task, tmp_path: Path) -> None:
    padded, _ = outline_kernels(quantized(task, EVEN)[1])
    packed, _ = pack_rows(padded)
    assert has_packed_rows(packed)
    assert_same_answers(padded, packed, task, EVEN, tmp_path)


def test_rows_stay_packed_where_tokens_are_pruned(tmp_path: Path) -> None:
    graph = captured(CLASSIFIER, PRUNED)
    assert PRUNED.token_pruning is not None
    fusions = prune_tokens(graph, PRUNED.token_pruning, fuse(graph, PRUNED, CLASSIFIER))
    padded, _ = outline_kernels(add_padding_branch(graph, fusions)[0])
    packed, calls = pack_rows(padded)
    assert calls == {"FirstRows": 1}
    assert len(operators(packed, "KeepTokens")) == 2
    assert_same_answers(padded, packed, CLASSIFIER, PRUNED, tmp_path)


def test_no_row_is_computed_behind_a_sequence(tmp_path: Path) -> None:
    """Every matmul of the encoder has as many rows as there are tokens."""
    graph = captured(MEAN, EVEN)
    packed = lower_for_cpu(graph, fuse(graph, EVEN, MEAN)).graph
    rows = next(call.outputs[0] for call in operators(packed, "LinearGelu"))
    packed.graph.outputs.append(rows)
    ir.save(packed, tmp_path / "model.onnx")
    mask = (np.arange(20) < np.array([[20], [3], [1]])).astype(np.int64)
    ids = np.ones_like(mask)
    session = Session(tmp_path / "model.onnx", MEAN.output, 1)
    found = session.run_outputs(Batch(ids, mask, ids * 0), [rows.name])[0]
    assert found.shape == (1, 24, EVEN.intermediate_size)
    assert session.run(Batch(ids, mask, ids * 0)).shape == (3, 24)


def test_a_graph_without_such_embeddings_or_attention_stays_as_it_is() -> None:
    graph = captured(MEAN, EVEN)
    fusions = fuse(graph, EVEN, MEAN)
    padded, _ = outline_kernels(add_padding_branch(graph, fusions)[0])
    for name, other in (("EmbedNorm", "OtherEmbedNorm"), ("SelfAttention", "OtherAttention")):
        changed = padded.clone()
        for call in operators(changed, name)[:1]:
            call.op_type, call.domain = other, ""
        assert pack_rows(changed) == (changed, {})
