"""Training speed: our models beside transformers', one process, one step after another in turn.

python -m bert_bench.experiments.training_speed --base CKPT --data DIR --output FILE

A step is forward, backward, clipping and AdamW, on batches that are at hand; tokens are counted without padding.
transformers' loss is its own (`labels=`), its attention the default. Fine-tuning reads random batches of a data set's
training file, or batches of like length (`sorted`); pre-training 32 sequences of 128 random tokens. bf16 is left out
where the processor has no instructions for it.
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
from bert_bench.experiments.harness import write_result
from bert_bench.experiments.transformers_fine_tuning import TransformersTaskModel, labelled_examples
from bert_bench.experiments.transformers_pretraining import TransformersPretraining
from bert_bench.timing_statistics import Timing, paired_speedup, summarize
from bert_models import load_model, open_checkpoint
from bert_models.families import FAMILIES
from bert_models.pretraining.masking import IGNORE_INDEX
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
_VOCAB_SIZE, _SHAPE, _MASK_SHARE = 8192, (32, 128), 0.15
_RATIOS = (
    ("ours fp32", "transformers fp32"),
    ("ours bf16", "transformers bf16"),
    ("ours fp32 sorted", "transformers fp32"),
    ("ours bf16 sorted", "transformers bf16"),
    ("ours bf16 sorted", "transformers fp32"),
)

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Token ids, mask and segments, int64 [B, S], and targets."""


@dataclass(frozen=True)
class _Case:
    """A model, its loss of a batch, and the batches; it trains as it is called."""

    model: nn.Module
    loss: Callable[[Batch], Tensor]
    batches: list[Batch]
    bf16: bool
    optimizer: AdamW

    def ms_per_1000_tokens(self, first: int, steps: int) -> float:
        """Takes `steps` batches from number `first` on."""
        chosen = [self.batches[(first + step) % len(self.batches)] for step in range(steps)]
        start = time.perf_counter()
        for batch in chosen:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
                value = self.loss(batch)
            value.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        seconds = time.perf_counter() - start
        return seconds * 1e6 / sum(int(batch[1].sum()) for batch in chosen)


def _case(model: nn.Module, loss: Callable[[Batch], Tensor], batches: list[Batch], name: str) -> _Case:
    optimizer = adamw(parameter_groups(model, 0.01), 1e-5)
    return _Case(model.train(), loss, batches, "bf16" in name, optimizer)


def _fine_tuning(name: str, base: Path, data: Path, count: int) -> dict[str, _Case]:
    """Cases on the texts of a data set."""
    data_set, source = DATA_SETS[name], open_checkpoint(base)
    with tempfile.TemporaryDirectory() as scratch:
        train, dev = (read_records(file) for file in convert_data_set(data_set, data, Path(scratch)))
    task = infer_task(data_set.task, source, train, dev, data_set.task_settings)
    assert isinstance(task, TextClassification)
    examples, settings = labelled_examples(source, task, train, data_set.settings), data_set.settings

    def batches(*, sort: bool) -> list[Batch]:
        loader = train_loader(examples, settings.batch_size, settings.seed, sort_by_length=sort)
        return [_parts(batch) for batch in islice(loader, count)]

    def ours(case: str, batches: list[Batch]) -> _Case:
        model, objective = load_model(source, task, new_head=True), build_objective(task)
        return _case(model, lambda batch: objective.loss(model, model(*batch[:3]), batch[3]), batches, case)

    def theirs(case: str, batches: list[Batch]) -> _Case:
        model = TransformersTaskModel(source.path, task).model
        return _case(model, lambda batch: _their_loss(model, batch), batches, case)

    random, alike = batches(sort=False), batches(sort=True)
    cases = {f"ours {each}": ours(each, random) for each in _precisions()}
    cases |= {f"transformers {each}": theirs(each, random) for each in _precisions()}
    return cases | {f"ours {each} sorted": ours(each, alike) for each in _precisions()}


def _precisions() -> tuple[str, ...]:
    """Those that the processor has instructions for; bf16 that is imitated takes minutes a step."""
    return ("fp32", "bf16") if has_instruction_set("bf16") else ("fp32",)


def _parts(batch: TensorBatch) -> Batch:
    return batch[:4]


def _their_loss(model: Any, batch: Batch) -> Tensor:
    ids, mask, types, labels = batch
    loss: Tensor = model(input_ids=ids, attention_mask=mask, token_type_ids=types, labels=labels).loss
    return loss


def _pretraining(count: int) -> dict[str, _Case]:
    """Cases of masked language modelling with BERT of the size `mini`."""
    config = FAMILIES["bert"].preset("mini", vocab_size=_VOCAB_SIZE)
    batches = [_random_batch(seed) for seed in range(count)]

    def ours(case: str) -> _Case:
        model = MaskedLanguageModel(config, FillMask(mask_token="[MASK]", mask_token_id=4), pairs=False)
        none = torch.zeros(_SHAPE[0], dtype=torch.int64)
        return _case(model, lambda batch: model.loss(model.measure(*batch, none)), batches, case)

    def theirs(case: str) -> _Case:
        model = TransformersPretraining(config, pairs=False).model
        return _case(model, lambda batch: _their_loss(model, batch), batches, case)

    cases = {f"ours {each}": ours(each) for each in _precisions()}
    return cases | {f"transformers {each}": theirs(each) for each in _precisions()}


def _random_batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(_VOCAB_SIZE, _SHAPE, generator=generator)
    chosen = torch.rand(_SHAPE, generator=generator) < _MASK_SHARE
    return ids, torch.ones_like(ids), torch.zeros_like(ids), torch.where(chosen, ids, IGNORE_INDEX)


def _measured(cases: dict[str, _Case], rounds: int, steps: int) -> dict[str, Any]:
    """Tokens per second of each case, and the ratios round by round."""
    samples: dict[str, list[list[float]]] = {name: [] for name in cases}
    names = list(cases)
    for name in names:
        cases[name].ms_per_1000_tokens(0, 2)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            samples[name].append([cases[name].ms_per_1000_tokens(turn * steps, steps)])
    timings: dict[str, Timing] = {name: summarize(each) for name, each in samples.items()}
    ratios = [
        {"of": first, "to": second, **asdict(paired_speedup(timings[first], timings[second]))}
        for first, second in _RATIOS
        if {first, second} <= timings.keys()
    ]
    return {"tokens_per_second": {name: round(1e6 / t.p50_ms) for name, t in timings.items()}, "ratios": ratios}


def results_table(result: Path) -> str:
    """The result as a Markdown table, a row per ratio."""
    lines = ["| workload | tokens/s | beside | tokens/s | ratio (p10–p90) |", "|---" * 5 + "|"]
    for workload, values in json.loads(result.read_text("utf-8"))["workloads"].items():
        speeds = values["tokens_per_second"]
        for each in values["ratios"]:
            spread = f"{each['median']:.2f} ({each['p10']:.2f}–{each['p90']:.2f})"
            cells = (workload, f"{each['of']} {speeds[each['of']]:,}", each["to"], f"{speeds[each['to']]:,}", spread)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--base", type=click.Path(path_type=Path), required=True)
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--rounds", type=int, default=12, show_default=True)
@click.option("--steps", type=int, default=8, show_default=True, help="Of each case in each round.")
def main(base: Path, data: Path, output: Path, rounds: int, steps: int) -> None:
    """Measures every workload, writes the result."""
    torch.manual_seed(0)
    torch.set_num_threads(available_cores())
    workloads = {name: _measured(_fine_tuning(name, base, data, rounds * steps), rounds, steps) for name in _NAMES}
    workloads["pre-training"] = _measured(_pretraining(rounds * steps), rounds, steps)
    write_result(output, {"what": "training steps in turn", "rounds": rounds, "steps": steps, "workloads": workloads})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
