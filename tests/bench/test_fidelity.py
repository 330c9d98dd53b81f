"""Engines that do not compute the same are not compared."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bert_bench import BenchError, WorkerError
from bert_bench.fidelity import check_fidelity
from bert_bench.workers.engine_pool import EnginePool
from bert_models import open_checkpoint
from bert_runtime import TextClassification
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import TextTokenizer

TASK = TextClassification(labels=("a", "b"))
REFERENCE = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
TEXTS = [TextInput("one"), TextInput("two")]


@pytest.fixture(scope="module")
def tokenizer(classifier_checkpoint: Path) -> TextTokenizer:
    return open_checkpoint(classifier_checkpoint).text_tokenizer()


def engine_pool(**outputs: NDArray[np.float32] | str) -> EnginePool:
    """Engines that give these outputs, a row per text, or fail with these words."""

    def answer(value: NDArray[np.float32] | str, *request: Any) -> list[tuple[NDArray[np.float32], ...]]:
        if isinstance(value, str):
            raise WorkerError(value)
        assert request == ("rows", TEXTS)
        return [(row,) for row in value]

    engines = EnginePool()
    for name, value in outputs.items():
        worker = SimpleNamespace(call=lambda *request, value=value: answer(value, *request))
        fake: Any = SimpleNamespace(name=name, worker=worker, spec=SimpleNamespace(is_fp32=name != "int8"))
        engines.running.append(fake)
    return engines


def test_pytorch_is_the_reference_where_it_runs(tokenizer: TextTokenizer) -> None:
    found = check_fidelity(engine_pool(int8=REFERENCE + 0.5, fp32=REFERENCE, pytorch=REFERENCE), TASK, tokenizer, TEXTS)
    assert {each.reference for each in found.values()} == {"pytorch"}
    assert found["int8"].max_abs_error == 0.5
    assert found["int8"].agreement["label_agreement"] == 1.0
    assert found["int8"].texts == 2


def test_the_fp32_variant_is_the_reference_without_pytorch(tokenizer: TextTokenizer) -> None:
    found = check_fidelity(engine_pool(int8=REFERENCE[::-1], fp32=REFERENCE), TASK, tokenizer, TEXTS)
    assert found["int8"].reference == "fp32"
    assert found["int8"].agreement["label_agreement"] == 0.0


def test_without_any_fp32_engine_nothing_is_compared(tokenizer: TextTokenizer) -> None:
    assert check_fidelity(engine_pool(int8=REFERENCE), TASK, tokenizer, TEXTS) == {}


def test_an_fp32_engine_that_computes_something_else_is_an_error(tokenizer: TextTokenizer) -> None:
    with pytest.raises(BenchError, match=r"fp32: expected a difference of at most 0\.001, found 0\.5.*checkpoint"):
        check_fidelity(engine_pool(fp32=REFERENCE + 0.5, pytorch=REFERENCE), TASK, tokenizer, TEXTS)


def test_outputs_of_another_shape_are_an_error(tokenizer: TextTokenizer) -> None:
    with pytest.raises(BenchError, match=r"int8: expected outputs of shape \[\(2,\)\] for text 0, found \[\(1,\)\]"):
        check_fidelity(engine_pool(int8=REFERENCE[:, :1], pytorch=REFERENCE), TASK, tokenizer, TEXTS)


def test_outputs_that_are_not_finite_are_an_error_in_int8_too(tokenizer: TextTokenizer) -> None:
    with pytest.raises(BenchError, match="int8: found outputs that are not finite"):
        check_fidelity(engine_pool(int8=REFERENCE * np.float32("nan"), pytorch=REFERENCE), TASK, tokenizer, TEXTS)


def test_an_engine_that_fails_on_the_probe_is_dropped(tokenizer: TextTokenizer) -> None:
    engines = engine_pool(fp32=REFERENCE, int8="out of memory")
    assert set(check_fidelity(engines, TASK, tokenizer, TEXTS)) == {"fp32"}
    assert engines.failures == {"int8": "while answering the probe texts: out of memory"}
    assert [each.name for each in engines.running] == ["fp32"]
