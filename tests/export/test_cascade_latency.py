"""Texts that a cascade is timed on."""

from typing import Any

from bert_export.cascade.latency import measure_latency
from bert_runtime.tasks import TextInput


def test_texts_of_the_whole_file_are_timed() -> None:
    seen: list[int] = []

    class Model:
        def __call__(self, text: TextInput) -> None:
            seen.append(int(text.text))

    class Cascade(Model):
        small, large = Model(), Model()

    given: Any = Cascade()
    found = measure_latency(given, [TextInput(str(number)) for number in range(1000)])
    assert sorted(set(seen)) == list(range(0, 1000, 5))
    assert found.keys() == {"small", "large", "cascade"}
    assert 0 < found["cascade"]["p50"] <= found["cascade"]["p99"] <= found["cascade"]["max"]
