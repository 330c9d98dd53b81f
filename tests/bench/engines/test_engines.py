"""Products that take texts: what they are asked."""

from typing import Any

import numpy as np

from bert_bench.engines.engine import TextEngine
from bert_bench.workloads import Case
from bert_runtime.tasks import TextInput


def test_a_product_is_asked_about_both_texts_of_a_pair() -> None:
    asked: list[Any] = []

    def many(texts: list[Any]) -> Any:
        asked.extend(texts)
        return np.zeros((len(texts), 2), dtype=np.float32)

    engine = TextEngine(lambda text: many([text]), many, many, 0)
    pair = TextInput("a man sings", "someone makes music")
    engine.answer(pair)
    engine.rows([pair, TextInput("alone")])
    engine.call(Case(name="pairs", stage="end_to_end", texts=(pair,), tokens=(8,)))()
    both = {"text": "a man sings", "text_pair": "someone makes music"}
    assert asked == [both, both, "alone", both]
