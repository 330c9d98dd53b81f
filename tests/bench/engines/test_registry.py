"""Registered engines: requirements, environments, tasks and labels."""

import re
from pathlib import Path

import pytest

from bert_bench.engines.engine_spec import EngineConfig, PreparedSpec
from bert_bench.engines.registry import COMPARED_ENGINES, ComparedEngine
from bert_bench.workers.environments import Environment, requirements_file
from bert_runtime.tasks import TASKS

ENVIRONMENTS = sorted(
    {engine.environment for engine in COMPARED_ENGINES.values() if engine.environment is not None} | {"loadgen"}
)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_has_pinned_requirements(name: str) -> None:
    lines = [line for line in requirements_file(name).read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert all(re.fullmatch(r"[\w.-]+(\[[\w,]+\])?==[\w.]+", line) for line in lines)


def test_distribution_names_have_no_extras_or_versions() -> None:
    found = Environment("sentence-transformers", Path("/cache")).distributions
    assert {"sentence-transformers", "openvino", "torch"} <= set(found)


def test_environments_that_prepare_engines_exist() -> None:
    specs = [engine.spec for engine in COMPARED_ENGINES.values() if issubclass(engine.spec, PreparedSpec)]
    assert {spec.prepare_environment for spec in specs} - {None} <= set(ENVIRONMENTS)


def test_every_engine_supports_existing_tasks() -> None:
    for engine in COMPARED_ENGINES.values():
        assert engine.spec.tasks is None or set(engine.spec.tasks) <= set(TASKS)
        assert any(engine.supports(task) for task in TASKS)


def test_engines_support_the_tasks_of_their_libraries() -> None:
    assert COMPARED_ENGINES["fastembed"].supports("sentence-embedding")
    assert not COMPARED_ENGINES["fastembed"].supports("text-classification")
    assert COMPARED_ENGINES["openvino-int8"].supports("text-classification")
    assert COMPARED_ENGINES["pytorch"].supports("fill-mask")


def test_only_exact_fp32_engines_must_match_the_reference() -> None:
    def is_fp32(name: str) -> bool:
        engine: ComparedEngine = COMPARED_ENGINES[name]
        return engine.config.precision == "fp32" and engine.config.exact

    exact = {name for name in COMPARED_ENGINES if is_fp32(name)}
    assert {"pytorch", "onnxruntime-plain", "openvino-fp32", "optimum-o1"} <= exact
    assert exact.isdisjoint({"pytorch-bf16", "optimum-o3", "optimum-int8", "openvino-int8"})


def test_labels_are_unique() -> None:
    assert all(isinstance(engine.config, EngineConfig) and engine.config.label for engine in COMPARED_ENGINES.values())
    assert len({engine.config.label for engine in COMPARED_ENGINES.values()}) == len(COMPARED_ENGINES)
