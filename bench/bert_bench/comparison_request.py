"""What a comparison is asked to do, and the texts that follow from it."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bert_bench.engines.registry import COMPARED_ENGINES
from bert_bench.settings import Settings
from bert_bench.workers.environments import cache_folder
from bert_bench.workloads import CORPUS, Workload, build_workload
from bert_runtime.errors import DataError, InputError
from bert_runtime.evaluation import build_examples
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import Example, Task, TextInput
from bert_runtime.tokenization import TextTokenizer

__all__ = ["BUNDLE_ENGINES", "BUNDLE_PREFIX", "WORKLOADS", "ComparisonRequest"]

BUNDLE_PREFIX = "bert-export-"
"""Stands before the precision in the names of the bundle's engines."""

BUNDLE_ENGINES = tuple(BUNDLE_PREFIX + precision for precision in ("fp32", "int8"))
"""Names of the bundle's engines."""

WORKLOADS = ("grid", "single", "offline", "concurrent", "loadgen")
"""What can be measured: shapes of token ids; single texts; many texts at once; several callers; MLPerf LoadGen."""

_CALIBRATION_TEXTS = 300
_PROBE_TEXTS = 64


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest:
    """What to compare, see `bert_bench.comparison.compare_engines`. Raises `InputError` for unknown names."""

    checkpoint: str | Path
    """A folder or a hub id."""
    bundle: Path | None = None
    """What was exported from it; by default it is exported now."""
    engines: Sequence[str] | None = None
    """Names of `BUNDLE_ENGINES` and of `COMPARED_ENGINES`; by default all that do the task."""
    workloads: Collection[str] = WORKLOADS[:-1]
    offline: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Named texts of the throughput workloads; by default messages of mixed lengths made of shipped ones."""
    labelled: Path | None = None
    """A file that outputs and the task metric are compared on."""
    columns: Mapping[str, str] | None = None
    """Of both files, see `bert_runtime.records.read_records`."""
    calibrate: Path | None = None
    """A file for engines that quantize statically; by default the shipped messages."""
    settings: Settings = field(default_factory=Settings.comparison)
    cache: Path = field(default_factory=cache_folder)

    def __post_init__(self) -> None:
        known = (*BUNDLE_ENGINES, *COMPARED_ENGINES)
        problems = [
            f"unknown {what} {', '.join(strange)}; expected some of {', '.join(names)}"
            for what, given, names in (("engine", self.engines or (), known), ("workload", self.workloads, WORKLOADS))
            if (strange := [name for name in given if name not in names])
        ]
        if problems:
            raise InputError("; ".join(problems))

    def wants(self, engine: str) -> bool:
        """Whether that engine is to be measured."""
        return self.engines is None or engine in self.engines

    def workload(self, task: Task, tokenizer: TextTokenizer) -> Workload:
        """The cases of the workloads asked for; the probe texts are there whatever was asked."""
        texts = self.offline if "offline" in self.workloads else {}
        whole = build_workload(task, tokenizer, texts, self.settings)
        parts = {"grid": ("shapes",), "single": ("singles", "stages"), "offline": ("offline",)}
        left_out = [name for part, names in parts.items() if part not in self.workloads for name in names]
        return replace(whole, **dict.fromkeys(left_out, ()))

    def probes(self, task: Task, tokenizer: TextTokenizer) -> list[TextInput]:
        """The texts on which outputs are compared where there is no labelled file."""
        settings = replace(self.settings, num_texts=_PROBE_TEXTS)
        return list(build_workload(task, tokenizer, {}, settings).offline[0].texts)

    def short_texts(self, task: Task, tokenizer: TextTokenizer) -> list[TextInput]:
        """What concurrent callers and LoadGen ask about: the synthetic texts of at most 32 tokens."""
        probes = self.probes(task, tokenizer)
        lengths = [sum(map(len, windows)) for windows in tokenizer.encode(probes)]
        return [text for text, length in zip(probes, lengths, strict=True) if length <= 32] or probes

    def examples(self, task: Task, tokenizer: TextTokenizer) -> list[Example]:
        """Rows of the labelled file, drawn at random where it has more than the settings want, in their order."""
        if self.labelled is None:
            return []
        records = read_records(self.labelled, self.columns)
        return build_examples(task, tokenizer, self._drawn(records, self.settings.labelled))

    def calibration(self, task: Task) -> list[TextInput]:
        """300 texts for static quantization, drawn at random: files are often sorted by label."""
        records = self._drawn(read_records(self.calibrate or CORPUS, self.columns), _CALIBRATION_TEXTS)
        try:
            return [each for record in records for each in task.example(record).inputs]
        except DataError:  # texts alone, or with labels of another task
            return task.sample_inputs([record.text() for record in records])

    def _drawn(self, records: list[Record], count: int) -> list[Record]:
        if len(records) <= count:
            return records
        chosen = sorted(random.Random(self.settings.seed).sample(range(len(records)), count))
        return [records[i] for i in chosen]
