"""Engines: what those that read texts are given, and the batches that others choose by trial."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_bench.engines.engine import ModelEngine, TextEngine
from bert_bench.workloads import Case
from bert_runtime.cpu.parallel_sessions import ParallelSessions
from bert_runtime.model import Model
from bert_runtime.runner import FunctionRunner
from bert_runtime.tasks import TextClassification, TextInput
from bert_runtime.tokenization import Batch, TextTokenizer

from ...runtime.task_models import wordpiece


def test_text_engine_gets_both_texts_of_a_pair() -> None:
    inputs: list[Any] = []

    def predict(texts: list[Any]) -> Any:
        inputs.extend(texts)
        return np.zeros((len(texts), 2), dtype=np.float32)

    engine = TextEngine(lambda text: predict([text]), predict, predict, 0)
    pair = TextInput("a man sings", "someone makes music")
    engine.predict(pair)
    engine.raw_outputs([pair, TextInput("alone")])
    engine.timed_call(Case(name="pairs", stage="end_to_end", texts=(pair,), tokens=(8,)))()
    both = {"text": "a man sings", "text_pair": "someone makes music"}
    assert inputs == [both, both, "alone", both]


@pytest.mark.parametrize("streams_are_fast", [True, False])
def test_engines_choose_several_batches_at_a_time_where_that_is_faster(streams_are_fast: bool, toy_vocab: Path) -> None:
    def forward(pause_s: float) -> FunctionRunner:
        def run(batch: Batch) -> Any:
            time.sleep(pause_s)
            return np.zeros((len(batch.input_ids), 2), dtype=np.float32)

        return FunctionRunner(run, 2)

    task, tokenizer = TextClassification(labels=("a", "b")), TextTokenizer(wordpiece(toy_vocab), 64, 0)
    alone, single = forward(0.004), forward(0.001 if streams_are_fast else 0.1)
    opened: list[Model] = []

    def open_streams() -> Model:
        parallel = ParallelSessions(alone, lambda: single, 2)
        opened.append(Model(task, tokenizer, alone, parallel, max_batch_tokens=256))
        return opened[-1]

    engine = ModelEngine(Model(task, tokenizer, alone, max_batch_tokens=256), 0, (256, 128), open_streams)
    engine.timed_call(Case(name="one", stage="end_to_end", texts=(TextInput("my card"),), tokens=(4,)))()
    assert not opened
    texts = tuple(TextInput(f"my card is late {number}") for number in range(100))
    result = engine.timed_call(Case(name="many", stage="end_to_end", texts=texts, tokens=(8,) * 100))()
    assert (len(opened), len(result)) == (1, 100)
    assert engine.streams == ({"many": 2} if streams_are_fast else {})
    assert engine.batch_tokens.keys() == {"many"}
    engine.close_unused()
    engine.choose_batches(texts)
    assert len(opened) == (1 if streams_are_fast else 2)  # its weights were dropped
