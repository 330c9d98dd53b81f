"""The choice of the arithmetic of training."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from bert_models import TaskModel, TrainingError, open_checkpoint
from bert_models.training import TrainSettings, fine_tune
from bert_models.training.data import ExampleDataset
from bert_models.training.precision import ChosenPrecision, choose_precision, fastest_precision, num_measured
from bert_runtime.records import Record
from bert_runtime.tasks import (
    TextClassification,
)


def records(labels: list[object], name: str = "train.jsonl") -> list[Record]:
    texts = ["a", "b c", "a b c a b c", "c c", "b a b"]
    return [
        Record({"text": texts[i % len(texts)], "label": label}, Path(name), i + 1) for i, label in enumerate(labels)
    ]


@pytest.fixture(scope="module")
def examples(classifier_checkpoint: Path) -> ExampleDataset:
    task = TextClassification(labels=("x", "y"))
    rows = records(["x", "y"] * 20)
    return ExampleDataset(
        task, [task.example(row) for row in rows], open_checkpoint(classifier_checkpoint).text_tokenizer()
    )


def test_auto_precision_is_measured(
    examples: ExampleDataset, classifier_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(classifier_checkpoint)
    model = TaskModel(checkpoint.config, TextClassification(labels=("x", "y")))
    batch = examples.collate(range(4))
    assert choose_precision("bf16", model, batch, examples.objective) == ("bf16", {})
    monkeypatch.setattr("bert_models.training.precision.has_instruction_set", lambda name: False)
    if not torch.cuda.is_available():
        assert choose_precision("auto", model, batch, examples.objective) == ("fp32", {})
    monkeypatch.setattr("bert_models.training.precision.has_instruction_set", lambda name: True)
    chosen = choose_precision("auto", model, batch, examples.objective)
    assert set(chosen.seconds_per_step) == {"fp32", "bf16"}
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("items", "tokens", "cuda", "expected"),
    [
        (32, 32 * 128, False, 4),
        (32, 32 * 16, False, 32),
        (32, 32 * 512, False, 2),
        (1, 512, False, 1),
        (1, 4096, False, 1),
        (32, 32 * 128, True, 32),
    ],
)
def test_cpu_measures_a_part_of_large_batches(
    monkeypatch: pytest.MonkeyPatch, items: int, tokens: int, cuda: bool, expected: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert num_measured(items, tokens) == expected


class FakeClock:
    """A clock that advances by a fixed time in each pass, by precision."""

    def __init__(self, step_s: dict[str, float]) -> None:
        self.now = 0.0
        self.step_s = step_s
        self.first_s: dict[str, float] = {}
        self.too_large: set[str] = set()
        """Precisions of which a pass runs out of memory."""
        self.steps: list[str] = []

    def perf_counter(self) -> float:
        return self.now

    def loss(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        name = "bf16" if torch.is_autocast_enabled("cpu") else "fp32"
        self.steps.append(name)
        self.now += self.first_s.pop(name, self.step_s[name])
        if name in self.too_large:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return tensors[0].sum()


@pytest.mark.parametrize(
    ("fp32_s", "bf16_s", "expected", "rounds"),
    [
        (0.1, 0.05, "bf16", 4),
        (0.1, 0.095, "fp32", 4),
        (0.1, 0.2, "fp32", 4),
        (3.0, 3.0, "fp32", 2),
        (30.0, 10.0, "bf16", 2),
        (30.0, 29.0, "fp32", 2),
    ],
    ids=["faster", "a tie", "slower", "time for one", "no time", "a tie without time"],
)
def test_auto_precision_has_a_time_limit_and_prefers_fp32(
    monkeypatch: pytest.MonkeyPatch, fp32_s: float, bf16_s: float, expected: str, rounds: int
) -> None:
    clock = FakeClock({"fp32": fp32_s, "bf16": bf16_s})
    monkeypatch.setattr("bert_models.training.precision.has_instruction_set", lambda name: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("bert_models.training.precision.time", clock)
    chosen = fastest_precision("auto", torch.nn.Linear(1, 1), [torch.ones(2, requires_grad=True)], clock.loss)
    assert chosen.name == expected
    assert chosen.seconds_per_step == pytest.approx(clock.step_s)
    assert clock.steps == ["fp32", "bf16"] * rounds


def test_a_slow_first_step_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock({"fp32": 1.4, "bf16": 0.5})
    clock.first_s["bf16"] = 11.0
    monkeypatch.setattr("bert_models.training.precision.has_instruction_set", lambda name: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("bert_models.training.precision.time", clock)
    chosen = fastest_precision("auto", torch.nn.Linear(1, 1), [torch.ones(2, requires_grad=True)], clock.loss)
    assert (chosen.name, clock.steps) == ("bf16", ["fp32", "bf16"] * 2)


@pytest.mark.parametrize("too_large", ["fp32", "bf16"])
def test_precision_that_needs_too_much_memory_is_not_chosen(monkeypatch: pytest.MonkeyPatch, too_large: str) -> None:
    clock = FakeClock({"fp32": 1.0, "bf16": 1.0})
    clock.too_large = {too_large}
    monkeypatch.setattr("bert_models.training.precision.has_instruction_set", lambda name: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("bert_models.training.precision.time", clock)
    fitting = {"fp32": "bf16", "bf16": "fp32"}[too_large]
    chosen = fastest_precision("auto", torch.nn.Linear(1, 1), [torch.ones(2, requires_grad=True)], clock.loss)
    assert chosen == (fitting, {fitting: pytest.approx(1.0)})
    assert clock.steps.count(too_large) == 1
    lines: list[str] = []
    chosen.report(lines.append)
    assert lines == [f"training in {fitting}: a measured step takes {fitting} 1000 ms; {too_large} needs more memory"]


def test_no_memory_in_either_precision_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock({"fp32": 1.0, "bf16": 1.0})
    clock.too_large = {"fp32", "bf16"}
    monkeypatch.setattr("bert_models.training.precision.has_instruction_set", lambda name: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = "precision auto: the GPU has no memory for a step in fp32 or bf16; lower --batch-size, or .*checkpointing"
    with pytest.raises(TrainingError, match=message):
        fastest_precision("auto", torch.nn.Linear(1, 1), [torch.ones(2, requires_grad=True)], clock.loss)


@pytest.mark.parametrize("too_large", [set(), {"fp32", "bf16"}])
def test_measured_model_returns_to_its_device(monkeypatch: pytest.MonkeyPatch, too_large: set[str]) -> None:
    """The first GPU would keep it, beside the shards of a distributed run."""

    class Watched(torch.nn.Linear):
        devices: ClassVar[list[str]] = []

        def to(self, device: Any) -> "Watched":  # type: ignore[override]
            self.devices.append(str(device))
            return self

    clock = FakeClock({"fp32": 1.0, "bf16": 1.0})
    clock.too_large = too_large
    monkeypatch.setattr("bert_models.training.precision.has_instruction_set", lambda name: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with suppress(TrainingError):
        fastest_precision("auto", Watched(1, 1, device="meta"), [torch.ones(2, requires_grad=True)], clock.loss)
    assert Watched.devices == ["cpu", "meta"]


@pytest.mark.parametrize(
    ("name", "native", "warned"), [("bf16", False, True), ("bf16", True, False), ("fp32", False, False)]
)
def test_emulated_bf16_is_warned_about(monkeypatch: pytest.MonkeyPatch, name: str, native: bool, warned: bool) -> None:
    monkeypatch.setattr("bert_models.training.precision.has_instruction_set", lambda _: native)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said: list[str] = []
    ChosenPrecision(name, {}).report(said.append)
    assert [line.startswith("training in bf16, which this processor has no instructions for") for line in said] == (
        [True] if warned else []
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="fp16 is there")
def test_fp16_needs_cuda(classifier_checkpoint: Path, tmp_path: Path) -> None:
    """Nothing is read or written before."""
    settings = TrainSettings(precision="fp16")
    with pytest.raises(TrainingError, match="precision fp16 needs CUDA, and torch finds no CUDA device; take bf16"):
        fine_tune("text-classification", classifier_checkpoint, "no.csv", "no.csv", tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()
