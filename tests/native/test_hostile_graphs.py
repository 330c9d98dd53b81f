"""Graphs, runtimes and machines that do not fit the kernels end in an error, not with the process."""

from pathlib import Path

import pytest

from bert_export.kernel_functions import FUNCTIONS
from bert_export.outline_embeddings import EMBEDDING_FUNCTIONS
from bert_runtime.cpu.native_kernels import kernel_library, kernel_names

from .child_processes import outcomes_of_hostile_graphs, run_program, unexpected_outcomes
from .hostile_graphs import hostile_graphs

pytestmark = pytest.mark.usefixtures("native_library")


@pytest.fixture
def library(native_library: None) -> Path:
    path = kernel_library()
    assert path is not None
    return path


def test_hostile_graphs_are_errors_or_run(library: Path) -> None:
    outcomes = outcomes_of_hostile_graphs(library)
    assert unexpected_outcomes(outcomes) == {}
    supported = {name for name, graph in hostile_graphs().items() if graph.function in kernel_names()}
    assert set(outcomes) == supported


def test_hostile_graphs_call_all_functions() -> None:
    assert {graph.function for graph in hostile_graphs().values()} == {*FUNCTIONS, *EMBEDDING_FUNCTIONS}


@pytest.mark.parametrize("function", ["Linear", "SelfAttention", "QuantizedAttention"])
def test_short_memory_is_an_error(function: str, library: Path) -> None:
    result = run_program("short_memory.py", str(library), function)
    assert result.returncode == 0, result.stderr
    assert "a native kernel ran out of memory" in result.stdout


@pytest.mark.parametrize("oldest", [True, False])
def test_onnxruntime_without_the_needed_api_is_an_error(oldest: bool, library: Path) -> None:
    """The runtime's table of functions is null for the version that the kernels need, or for every one."""
    result = run_program("null_api.py", str(library), *(["1"] if oldest else []))
    assert result.returncode == 0, result.stderr
    assert result.stdout == ("the native kernels need ONNX Runtime 1.17 or newer\n" if oldest else "")
