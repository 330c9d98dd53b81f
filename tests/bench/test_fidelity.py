"""Outputs of all engines are compared with a reference; engines that differ are not timed."""

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
    """Return a pool of engines with these outputs [texts, …], or that fail with this message."""

    def respond(value: NDArray[np.float32] | str, *request: Any) -> list[tuple[NDArray[np.float32], ...]]:
        if isinstance(value, str):
            raise WorkerError(value)
        assert request == ("raw_outputs", TEXTS)
        return [(output,) for output in value]

    engines = EnginePool()
    for name, value in outputs.items():
        worker = SimpleNamespace(call=lambda *request, value=value: respond(value, *request))
        fake: Any = SimpleNamespace(name=name, worker=worker, spec=SimpleNamespace(is_fp32=name != "int8"))
        engines.running.append(fake)
    return engines


def test_pytorch_is_the_reference_if_it_runs(tokenizer: TextTokenizer) -> None:
    found = check_fidelity(engine_pool(int8=REFERENCE + 0.5, fp32=REFERENCE, pytorch=REFERENCE), TASK, tokenizer, TEXTS)
    assert {fidelity.reference for fidelity in found.values()} == {"pytorch"}
    assert found["int8"].max_abs_error == 0.5
    assert found["int8"].agreement["label_agreement"] == 1.0
    assert found["int8"].texts == 2


def test_fp32_variant_is_the_reference_without_pytorch(tokenizer: TextTokenizer) -> None:
    found = check_fidelity(engine_pool(int8=REFERENCE[::-1], fp32=REFERENCE), TASK, tokenizer, TEXTS)
    assert found["int8"].reference == "fp32"
    assert found["int8"].agreement["label_agreement"] == 0.0


def test_a_compressed_model_is_no_reference_and_may_differ(tokenizer: TextTokenizer) -> None:
    engines = {"bert-export-fp32": REFERENCE + 0.5, "onnxruntime-plain": REFERENCE}
    compressed = {"bert-export-fp32"}
    found = check_fidelity(
        engine_pool(**engines), TASK, tokenizer, TEXTS, must_agree=compressed, other_model=compressed
    )  # fmt: skip
    assert {name: item.max_abs_error for name, item in found.items()} == {
        "bert-export-fp32": 0.5, "onnxruntime-plain": 0.0,
    }  # fmt: skip


def test_nothing_is_compared_without_an_fp32_engine(tokenizer: TextTokenizer) -> None:
    assert check_fidelity(engine_pool(int8=REFERENCE), TASK, tokenizer, TEXTS) == {}


def test_differing_fp32_outputs_are_an_error(tokenizer: TextTokenizer) -> None:
    with pytest.raises(BenchError, match=r"fp32: expected a difference of at most 0\.001, found 0\.5.*checkpoint"):
        check_fidelity(engine_pool(fp32=REFERENCE + 0.5, pytorch=REFERENCE), TASK, tokenizer, TEXTS)


def test_differing_shapes_are_an_error(tokenizer: TextTokenizer) -> None:
    with pytest.raises(BenchError, match=r"int8: expected outputs of shape \[\(2,\)\] for text 0, found \[\(1,\)\]"):
        check_fidelity(engine_pool(int8=REFERENCE[:, :1], pytorch=REFERENCE), TASK, tokenizer, TEXTS)


def test_non_finite_outputs_are_an_error_even_in_int8(tokenizer: TextTokenizer) -> None:
    with pytest.raises(BenchError, match="int8: found outputs that are not finite"):
        check_fidelity(engine_pool(int8=REFERENCE * np.float32("nan"), pytorch=REFERENCE), TASK, tokenizer, TEXTS)


def test_engine_that_fails_on_the_probe_texts_is_dropped(tokenizer: TextTokenizer) -> None:
    engines = engine_pool(fp32=REFERENCE, int8="out of memory")
    assert set(check_fidelity(engines, TASK, tokenizer, TEXTS)) == {"fp32"}
    assert engines.failures == {"int8": "while predicting the probe texts: out of memory"}
    assert [engine.name for engine in engines.running] == ["fp32"]


def test_differing_engine_that_need_not_agree_is_dropped(tokenizer: TextTokenizer) -> None:
    engines = engine_pool(fp32=REFERENCE, pytorch=REFERENCE, other=REFERENCE + 0.5)
    assert set(check_fidelity(engines, TASK, tokenizer, TEXTS, must_agree={"fp32"})) == {"fp32", "pytorch"}
    assert "found 0.5" in engines.failures["other"]
    assert [engine.name for engine in engines.running] == ["fp32", "pytorch"]
