"""The request of a comparison: checkpoint, engines, workloads, and the texts derived from them."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bert_bench.engines.registry import COMPARED_ENGINES
from bert_bench.settings import Settings
from bert_bench.workers.environments import bench_cache_dir
from bert_bench.workloads import CORPUS, Workload, build_workload
from bert_runtime.errors import DataError, InputError
from bert_runtime.evaluation import build_examples
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import Example, Task, TextInput
from bert_runtime.tokenization import TextTokenizer

__all__ = ["BUNDLE_ENGINES", "BUNDLE_PREFIX", "WORKLOADS", "ComparisonRequest"]

BUNDLE_PREFIX = "bert-export-"
"""Prefix of the precision in the names of the bundle's engines."""

BUNDLE_ENGINES = tuple(BUNDLE_PREFIX + precision for precision in ("fp32", "int8", "bf16"))
"""Names of the bundle's engines."""

WORKLOADS = ("grid", "single", "offline", "concurrent", "loadgen")
"""Workloads: a grid of token-id shapes, single texts, many texts at once, concurrent clients, MLPerf LoadGen."""

_CALIBRATION_TEXTS = 300
_PROBE_TEXTS = 64
_SHORT_TEXT_TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest:
    """Engines and workloads to compare, see `bert_bench.comparison.compare_engines`.

    Raises:
        InputError: unknown engines or workloads; all of them are named.
    """

    checkpoint: str | Path
    """A folder or a hub id."""
    bundle: Path | None = None
    """The bundle exported from it; by default it is exported now."""
    engines: Sequence[str] | None = None
    """Names from `BUNDLE_ENGINES` and `COMPARED_ENGINES`; by default all that support the task."""
    workloads: Collection[str] = WORKLOADS[:-1]
    offline: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Texts of the offline workloads by name; by default synthetic messages of mixed lengths."""
    labelled: Path | None = None
    """Labelled file for the task metric and the comparison of outputs."""
    columns: Mapping[str, str] | None = None
    """Columns of `labelled` and `calibrate`, see `bert_runtime.records.read_records`."""
    calibrate: Path | None = None
    """File of texts for engines that quantize statically; by default the shipped messages."""
    settings: Settings = field(default_factory=Settings.comparison)
    title: str | None = None
    """The model's name in the report; by default that of its size."""
    cache: Path = field(default_factory=bench_cache_dir)
    """Folder for environments and artifacts."""

    def __post_init__(self) -> None:
        engines = (*BUNDLE_ENGINES, *COMPARED_ENGINES)
        problems = [
            f"unknown {what} {', '.join(unknown)}; expected some of {', '.join(known)}"
            for what, given, known in (("engine", self.engines or (), engines), ("workload", self.workloads, WORKLOADS))
            if (unknown := [name for name in given if name not in known])
        ]
        if problems:
            raise InputError("; ".join(problems))

    def wants(self, engine: str) -> bool:
        """Return whether the engine was requested."""
        return self.engines is None or engine in self.engines

    def workload(self, task: Task, tokenizer: TextTokenizer) -> Workload:
        """Return the cases of the requested workloads."""
        texts = self.offline if "offline" in self.workloads else {}
        whole = build_workload(task, tokenizer, texts, self.settings)
        fields_by_workload = {"grid": ("shapes",), "single": ("singles", "stages"), "offline": ("offline",)}
        left_out = [
            name
            for workload, names in fields_by_workload.items()
            if workload not in self.workloads
            for name in names
        ]  # fmt: skip
        return replace(whole, **dict.fromkeys(left_out, ()))

    def probes(self, task: Task, tokenizer: TextTokenizer) -> list[TextInput]:
        """Return the synthetic texts on which outputs are compared if there is no labelled file."""
        settings = replace(self.settings, num_texts=_PROBE_TEXTS)
        return list(build_workload(task, tokenizer, {}, settings).offline[0].texts)

    def short_texts(self, task: Task, tokenizer: TextTokenizer) -> list[TextInput]:
        """Return the texts for concurrent clients and LoadGen: the synthetic texts of at most 32 tokens."""
        probes = self.probes(task, tokenizer)
        lengths = [sum(map(len, windows)) for windows in tokenizer.encode(probes)]
        short = [text for text, length in zip(probes, lengths, strict=True) if length <= _SHORT_TEXT_TOKENS]
        return short or probes

    def examples(self, task: Task, tokenizer: TextTokenizer) -> list[Example]:
        """Return the examples of the labelled file, in order; a longer file is sampled to `settings.max_examples`."""
        if self.labelled is None:
            return []
        records = read_records(self.labelled, self.columns)
        return build_examples(task, tokenizer, self._sample(records, self.settings.max_examples))

    def calibration(self, task: Task) -> list[TextInput]:
        """Return 300 texts for static quantization, sampled at random since files are often sorted by label."""
        records = self._sample(read_records(self.calibrate or CORPUS, self.columns), _CALIBRATION_TEXTS)
        try:
            return [text for record in records for text in task.example(record).inputs]
        except DataError:  # the file has no labels, or those of another task
            return task.sample_inputs([record.text() for record in records])

    def _sample(self, records: list[Record], count: int) -> list[Record]:
        """Return at most `count` records, sampled at random, in order."""
        if len(records) <= count:
            return records
        chosen = sorted(random.Random(self.settings.seed).sample(range(len(records)), count))
        return [records[i] for i in chosen]
