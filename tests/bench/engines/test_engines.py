"""Engines that read texts get both texts of a pair."""

from typing import Any

import numpy as np

from bert_bench.engines.engine import TextEngine
from bert_bench.workloads import Case
from bert_runtime.tasks import TextInput


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
