"""Measure bundles: their task metric against the uncompressed model's on the same rows, and their speed."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Encoding

from bert_export.calibration_texts import spread
from bert_export.compression.latency_table import measure_latencies
from bert_export.paired_bootstrap import PairedDrop, paired_drop
from bert_models.errors import CompressionError
from bert_runtime.evaluation import run_examples
from bert_runtime.loading import load
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Example, Outputs, TextInput
from bert_runtime.tokenization import TextTokenizer

__all__ = ["Reference", "drop_to_json", "timed_texts"]

_TIMED_TEXTS = 48
"""Texts of dev that latencies are measured on, evenly spread over the lengths."""

_NUM_TIMINGS = 3
"""Bundles are timed so often, and the median speed-up counts: on a shared machine, one that is 2.04 times as fast was
once 1.83 times as fast."""

_REST_S = 5.0
"""Seconds between two timings (a judgement)."""


def timed_texts(model: Model, texts: Sequence[TextInput]) -> list[TextInput]:
    """Choose texts whose lengths in tokens are distributed as those of all: evenly spread in the order of length."""
    windows = model.tokenizer.encode(model.task.prefixed(texts))
    order = sorted(range(len(texts)), key=lambda index: sum(map(len, windows[index])))
    return spread([texts[index] for index in order], _TIMED_TEXTS)


class Reference:
    """The uncompressed model in INT8, which all candidates are compared with.

    Args:
        bundle: its bundle.
        texts: texts that the search may see, to time with.
        tokenizer: the tokenizer of the candidates, which may truncate texts that this model reads whole; by default
            its own.
    """

    def __init__(self, bundle: Path, texts: Sequence[TextInput], tokenizer: TextTokenizer | None = None) -> None:
        self.model = load(bundle, precision="int8")
        self.tokenizer = tokenizer or self.model.tokenizer
        self.task = self.model.task
        """Its task; see `tune_threshold`."""
        self.texts = timed_texts(self.model, texts)
        self.lengths = [sum(map(len, windows)) for windows in self.tokenizer.encode(self.task.prefixed(self.texts))]
        """Tokens of each of the timed texts, as candidates read them."""
        self._outputs: dict[int, tuple[Sequence[Example], list[Outputs]]] = {}  # a kept list keeps its id
        self._answers: dict[tuple[tuple[int, ...], tuple[int, ...]], FloatArray] = {}

    def outputs(self, examples: Sequence[Example]) -> list[Outputs]:
        """Return its outputs for the inputs of labelled examples; computed once for each list of them."""
        if id(examples) not in self._outputs:
            self._outputs[id(examples)] = examples, run_examples(self.model, examples)
        return self._outputs[id(examples)][1]

    def answer(self, encodings: Sequence[Encoding]) -> list[FloatArray]:
        """Return its raw outputs for tokenized sequences, without padding; each sequence is run once."""
        keys = [(tuple(encoding.ids), tuple(encoding.type_ids)) for encoding in encodings]
        new = {key: encoding for key, encoding in zip(keys, encodings, strict=True) if key not in self._answers}
        self._answers.update(zip(new, self.model.run_encodings(list(new.values())), strict=True))
        return [self._answers[key] for key in keys]

    def tune_threshold(self, examples: Sequence[Example]) -> None:
        """Choose the threshold that is best on the search's rows, as the training of every candidate does.

        Otherwise a candidate could be better by its threshold alone.
        """
        self.task = self.task.with_tuned_threshold(self.task.score(self.outputs(examples), examples))

    def check_metric(self, examples: Sequence[Example]) -> None:
        """Raise `CompressionError` if its metric is not above 0: a loss in percent would mean nothing."""
        metric = self.task.metric_for(examples)
        value = self.task.score(self.outputs(examples), examples)[metric]
        if not value > 0:
            raise CompressionError(
                f"expected a checkpoint whose {metric} is above 0, found {value:.4f} of {len(examples)} dev rows "
                "in INT8; fine-tune it first"
            )

    def compare(self, bundle: Path, examples: Sequence[Example]) -> PairedDrop:
        """Compare a bundle's default variant on labelled examples."""
        model = load(bundle)
        outputs = run_examples(model, examples)
        return paired_drop(model.task, outputs, self.task, self.outputs(examples), examples)

    def time(self, bundle: Path) -> dict[str, float]:
        """Time a bundle's default variant and the reference in turn, one text at a time, tokenization included."""
        models, timings = {"compressed": load(bundle), "uncompressed": self.model}, []
        for number in range(_NUM_TIMINGS):
            time.sleep(_REST_S if number else 0.0)
            timings.append(measure_latencies(models, self.texts))
        found = sorted(timings, key=_speedup)[_NUM_TIMINGS // 2]
        return {
            "latency_ms": round(found["compressed"], 5),
            "uncompressed_latency_ms": round(found["uncompressed"], 5),
            "speedup": round(_speedup(found), 4),
        }


def _speedup(latencies_ms: Mapping[str, float]) -> float:
    return latencies_ms["uncompressed"] / latencies_ms["compressed"]


def drop_to_json(drop: PairedDrop) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    return {
        "metric": drop.metric,
        "rows": drop.rows,
        "uncompressed": round(drop.reference, 6),
        "compressed": round(drop.found, 6),
        "compressed_interval": [round(drop.found_interval.low, 6), round(drop.found_interval.high, 6)],
        "drop_percent": round(drop.drop_percent, 4),
        "drop_percent_interval": [round(drop.drop_interval.low, 4), round(drop.drop_interval.high, 4)],
    }
