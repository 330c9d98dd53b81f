"""What the registry lists can be found, installed and named."""

import re
from pathlib import Path

import pytest

from bert_bench.engines.engine_spec import Kind, PreparedSpec
from bert_bench.engines.registry import PEERS, Peer
from bert_bench.workers.environments import Environment, requirements_file
from bert_runtime.tasks import TASKS

ENVIRONMENTS = sorted({peer.environment for peer in PEERS.values() if peer.environment is not None} | {"loadgen"})


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_has_a_file_of_pinned_requirements(name: str) -> None:
    lines = [line for line in requirements_file(name).read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert all(re.fullmatch(r"[\w.-]+(\[[\w,]+\])?==[\w.]+", line) for line in lines)


def test_distributions_are_named_without_extras_and_versions() -> None:
    found = Environment("sentence-transformers", Path("/cache")).distributions
    assert {"sentence-transformers", "openvino", "torch"} <= set(found)


def test_engines_of_one_environment_that_another_prepares_have_both() -> None:
    peers = [peer.spec for peer in PEERS.values() if issubclass(peer.spec, PreparedSpec)]
    assert {spec.prepared_in for spec in peers} - {None} <= set(ENVIRONMENTS)


def test_every_peer_does_tasks_that_there_are() -> None:
    for peer in PEERS.values():
        assert peer.spec.tasks is None or set(peer.spec.tasks) <= set(TASKS)
        assert any(peer.does(task) for task in TASKS)


def test_embeddings_and_classification_have_peers_of_their_own() -> None:
    assert PEERS["fastembed"].does("sentence-embedding")
    assert not PEERS["fastembed"].does("text-classification")
    assert PEERS["openvino-int8"].does("text-classification")
    assert PEERS["pytorch"].does("fill-mask")


def test_outputs_must_match_only_where_nothing_is_approximated() -> None:
    def is_fp32(name: str) -> bool:
        peer: Peer = PEERS[name]
        return peer.kind.precision == "fp32" and peer.kind.exact

    exact = {name for name in PEERS if is_fp32(name)}
    assert {"pytorch", "onnxruntime-plain", "openvino-fp32", "optimum-o1"} <= exact
    assert exact.isdisjoint({"pytorch-bf16", "optimum-o3", "optimum-int8", "openvino-int8"})


def test_a_kind_reads_as_what_it_is() -> None:
    assert all(isinstance(peer.kind, Kind) and peer.kind.label for peer in PEERS.values())
    assert len({peer.kind.label for peer in PEERS.values()}) == len(PEERS)
