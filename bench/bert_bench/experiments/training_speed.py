"""Measure training speed of bert_models' classes vs. transformers' classes, in tokens per second on the CPU.

python -m bert_bench.experiments.training_speed --base CKPT --data DIR --output FILE

A step is forward, backward, gradient clipping and AdamW, on batches that are in memory. Tokens are counted without
padding. transformers' models compute their own loss (`labels=`) with their default attention. Fine-tuning reads random
batches of a data set's training file, or batches of texts of similar length (`sorted`); pre-training reads 32 sequences
of 128 random tokens. All cases run in one process, interleaved: 12 rounds of 8 steps, each round starting with another
case. Ratios are taken round by round; their median, p10 and p90 are reported. bf16 is left out on a CPU without bf16
instructions.

Made bench/results/training-speed.json and training-speed-xeon.json.
"""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from bert_bench.experiments.data_sets import DATA_SETS, convert_data_set
from bert_bench.experiments.harness import path_option, write_result
from bert_bench.experiments.transformers_fine_tuning import TransformersTaskModel, labelled_examples
from bert_bench.experiments.transformers_pretraining import TransformersPretraining
from bert_bench.reports.markdown_table import markdown_table
from bert_bench.timing_statistics import paired_speedup, rotated, summarize
from bert_models import load_model, open_checkpoint
from bert_models.crf import IGNORE_INDEX
from bert_models.families import FAMILIES
from bert_models.pretraining.model import MaskedLanguageModel
from bert_models.training.data import TensorBatch, train_loader
from bert_models.training.infer_task import infer_task
from bert_models.training.objectives import build_objective
from bert_models.training.optimizer import adamw, parameter_groups
from bert_runtime.machine import available_cores, has_instruction_set
from bert_runtime.records import read_records
from bert_runtime.tasks import FillMask, TextClassification

__all__ = ["main", "results_table"]

_NAMES = ("banking77", "sst2")
"""Data sets of the fine-tuning workloads."""

_VOCAB_SIZE, _SHAPE, _MASK_PROBABILITY = 8192, (32, 128), 0.15
"""Vocabulary, shape (sequences, tokens) and masking of the pre-training workload."""

_RATIOS = (
    ("ours fp32", "transformers fp32"),
    ("ours bf16", "transformers bf16"),
    ("ours fp32 sorted", "transformers fp32"),
    ("ours bf16 sorted", "transformers bf16"),
    ("ours bf16 sorted", "transformers fp32"),
)
"""Pairs of cases to compare, by their names in result files: `ours` is bert_models."""

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Token ids, attention mask and token types, int64 [B, S], and labels."""


@dataclass(frozen=True)
class _Case:
    """A model to train, its loss function, its batches and its optimizer."""

    model: nn.Module
    loss: Callable[[Batch], Tensor]
    batches: list[Batch]
    bf16: bool
    optimizer: AdamW

    def ms_per_1000_tokens(self, first: int, steps: int) -> float:
        """Train for `steps` steps, starting with batch number `first`; return milliseconds per 1,000 tokens."""
        batches = [self.batches[(first + step) % len(self.batches)] for step in range(steps)]
        start = time.perf_counter()
        for batch in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
                value = self.loss(batch)
            value.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        seconds = time.perf_counter() - start
        return seconds * 1e6 / sum(int(batch[1].sum()) for batch in batches)


def _case(model: nn.Module, loss: Callable[[Batch], Tensor], batches: list[Batch], precision: str) -> _Case:
    optimizer = adamw(parameter_groups(model, 0.01), 1e-5)
    return _Case(model.train(), loss, batches, precision == "bf16", optimizer)


def _transformers_case(model: Any, batches: list[Batch], precision: str) -> _Case:
    """Return the case of a transformers model with the loss that it computes itself."""

    def loss(batch: Batch) -> Tensor:
        ids, mask, types, labels = batch
        value: Tensor = model(input_ids=ids, attention_mask=mask, token_type_ids=types, labels=labels).loss
        return value

    return _case(model, loss, batches, precision)


def _fine_tuning(name: str, base: Path, data: Path, count: int) -> dict[str, _Case]:
    """Return the cases of fine-tuning on a data set, with `count` batches each."""
    data_set, source = DATA_SETS[name], open_checkpoint(base)
    with tempfile.TemporaryDirectory() as scratch:
        train, dev = (read_records(file) for file in convert_data_set(data_set, data, Path(scratch)))
    task = infer_task(data_set.task, source, train, dev, data_set.task_settings)
    assert isinstance(task, TextClassification)
    examples, settings = labelled_examples(source, task, train, data_set.settings), data_set.settings

    def batches(*, sort: bool) -> list[Batch]:
        loader = train_loader(examples, settings.batch_size, settings.seed, sort_by_length=sort)
        return [_without_extras(batch) for batch in islice(loader, count)]

    def bert_models_case(batches: list[Batch], precision: str) -> _Case:
        model, objective = load_model(source, task, new_head=True), build_objective(task)
        return _case(model, lambda batch: objective.loss(model, model(*batch[:3]), batch[3]), batches, precision)

    def transformers_case(precision: str) -> _Case:
        return _transformers_case(TransformersTaskModel(source.path, task).model, random_batches, precision)

    random_batches, sorted_batches = batches(sort=False), batches(sort=True)
    precisions = _precisions()
    cases = {f"ours {precision}": bert_models_case(random_batches, precision) for precision in precisions}
    cases |= {f"transformers {precision}": transformers_case(precision) for precision in precisions}
    return cases | {f"ours {precision} sorted": bert_models_case(sorted_batches, precision) for precision in precisions}


def _precisions() -> tuple[str, ...]:
    """Return the precisions that the CPU has instructions for; a step in emulated bf16 takes minutes."""
    return ("fp32", "bf16") if has_instruction_set("bf16") else ("fp32",)


def _without_extras(batch: TensorBatch) -> Batch:
    """Return ids, mask, token types and labels of a batch."""
    return batch[:4]


def _pretraining(count: int) -> dict[str, _Case]:
    """Return the cases of masked language modelling with BERT of size `mini`, with `count` batches each."""
    config = FAMILIES["bert"].preset("mini", vocab_size=_VOCAB_SIZE)
    batches = [_random_batch(seed) for seed in range(count)]

    def bert_models_case(precision: str) -> _Case:
        model = MaskedLanguageModel(config, FillMask(mask_token="[MASK]", mask_token_id=4), pairs=False)
        sentence_labels = torch.zeros(_SHAPE[0], dtype=torch.int64)
        return _case(model, lambda batch: model.loss(model.measure(*batch, sentence_labels)), batches, precision)

    def transformers_case(precision: str) -> _Case:
        return _transformers_case(TransformersPretraining(config, pairs=False).model, batches, precision)

    cases = {f"ours {precision}": bert_models_case(precision) for precision in _precisions()}
    return cases | {f"transformers {precision}": transformers_case(precision) for precision in _precisions()}


def _random_batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(_VOCAB_SIZE, _SHAPE, generator=generator)
    masked = torch.rand(_SHAPE, generator=generator) < _MASK_PROBABILITY
    return ids, torch.ones_like(ids), torch.zeros_like(ids), torch.where(masked, ids, IGNORE_INDEX)


def _measure(cases: dict[str, _Case], rounds: int, steps: int) -> dict[str, Any]:
    """Time the cases interleaved; return tokens per second of each and the ratios of `_RATIOS`."""
    samples: dict[str, list[list[float]]] = {name: [] for name in cases}
    for case in cases.values():
        case.ms_per_1000_tokens(0, 2)  # warm up
    for turn in range(rounds):
        for name in rotated(list(cases), turn):
            samples[name].append([cases[name].ms_per_1000_tokens(turn * steps, steps)])
    timings = {name: summarize(rounds_of_case) for name, rounds_of_case in samples.items()}
    ratios = [
        {"of": first, "to": second, **asdict(paired_speedup(timings[first], timings[second]))}
        for first, second in _RATIOS
        if {first, second} <= timings.keys()
    ]
    return {"tokens_per_second": {name: round(1e6 / t.p50_ms) for name, t in timings.items()}, "ratios": ratios}


def results_table(result: Path) -> str:
    """Return a result file as a Markdown table, one row per ratio."""
    rows = []
    for workload, values in json.loads(result.read_text("utf-8"))["workloads"].items():
        speeds = values["tokens_per_second"]
        for ratio in values["ratios"]:
            case, baseline = ratio["of"], ratio["to"]
            spread = f"{ratio['median']:.2f} ({ratio['p10']:.2f}–{ratio['p90']:.2f})"
            shown = f"{case.replace('ours', 'bert-export')} {speeds[case]:,}"
            rows.append([workload, shown, baseline, f"{speeds[baseline]:,}", spread])
    return markdown_table(["workload", "tokens/s", "vs.", "tokens/s", "ratio (p10–p90)"], rows, num_names=3)


@click.command(help=__doc__)
@path_option("--base", "Checkpoint folder to fine-tune from.")
@path_option("--data", "Folder with the data sets' files.")
@path_option("--output", "Result file to write.")
@click.option("--rounds", type=int, default=12, show_default=True, help="Rounds of timing.")
@click.option("--steps", type=int, default=8, show_default=True, help="Training steps per case and round.")
def main(base: Path, data: Path, output: Path, rounds: int, steps: int) -> None:
    """Measure every workload, write the result, print the table."""
    torch.manual_seed(0)
    torch.set_num_threads(available_cores())
    workloads = {name: _measure(_fine_tuning(name, base, data, rounds * steps), rounds, steps) for name in _NAMES}
    workloads["pre-training"] = _measure(_pretraining(rounds * steps), rounds, steps)
    write_result(output, {"what": "training steps in turn", "rounds": rounds, "steps": steps, "workloads": workloads})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
