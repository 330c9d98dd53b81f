"""What the registry lists can be found, installed and named."""

import re
from pathlib import Path

import pytest

from bert_bench.engines.engine_spec import EngineConfig, PreparedSpec
from bert_bench.engines.registry import COMPARED_ENGINES, ComparedEngine
from bert_bench.workers.environments import Environment, requirements_file
from bert_runtime.tasks import TASKS

ENVIRONMENTS = sorted(
    {peer.environment for peer in COMPARED_ENGINES.values() if peer.environment is not None} | {"loadgen"}
)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_has_a_file_of_pinned_requirements(name: str) -> None:
    lines = [line for line in requirements_file(name).read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert all(re.fullmatch(r"[\w.-]+(\[[\w,]+\])?==[\w.]+", line) for line in lines)


def test_distributions_are_named_without_extras_and_versions() -> None:
    found = Environment("sentence-transformers", Path("/cache")).distributions
    assert {"sentence-transformers", "openvino", "torch"} <= set(found)


def test_engines_of_one_environment_that_another_prepares_have_both() -> None:
    peers = [peer.spec for peer in COMPARED_ENGINES.values() if issubclass(peer.spec, PreparedSpec)]
    assert {spec.prepare_environment for spec in peers} - {None} <= set(ENVIRONMENTS)


def test_every_peer_does_tasks_that_there_are() -> None:
    for peer in COMPARED_ENGINES.values():
        assert peer.spec.tasks is None or set(peer.spec.tasks) <= set(TASKS)
        assert any(peer.does(task) for task in TASKS)


def test_embeddings_and_classification_have_peers_of_their_own() -> None:
    assert COMPARED_ENGINES["fastembed"].does("sentence-embedding")
    assert not COMPARED_ENGINES["fastembed"].does("text-classification")
    assert COMPARED_ENGINES["openvino-int8"].does("text-classification")
    assert COMPARED_ENGINES["pytorch"].does("fill-mask")


def test_outputs_must_match_only_where_nothing_is_approximated() -> None:
    def is_fp32(name: str) -> bool:
        peer: ComparedEngine = COMPARED_ENGINES[name]
        return peer.config.precision == "fp32" and peer.config.exact

    exact = {name for name in COMPARED_ENGINES if is_fp32(name)}
    assert {"pytorch", "onnxruntime-plain", "openvino-fp32", "optimum-o1"} <= exact
    assert exact.isdisjoint({"pytorch-bf16", "optimum-o3", "optimum-int8", "openvino-int8"})


def test_a_kind_reads_as_what_it_is() -> None:
    assert all(isinstance(peer.config, EngineConfig) and peer.config.label for peer in COMPARED_ENGINES.values())
    assert len({peer.config.label for peer in COMPARED_ENGINES.values()}) == len(COMPARED_ENGINES)
