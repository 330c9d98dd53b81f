"""What can be changed in the recipe of fine-tuning, and what each of these changes does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import transformers

from bert_models import EncoderConfig, TaskModel, TrainingError, load_model, open_checkpoint
from bert_models.training import TrainSettings, fine_tune
from bert_models.training.data import ExampleDataset, LengthGroupedSampler, train_loader
from bert_models.training.loop import fit
from bert_models.training.module import FineTuning
from bert_models.training.objectives import build_objective
from bert_models.training.optimizer import linear_schedule, parameter_groups
from bert_models.training.precision import ChosenPrecision
from bert_runtime.records import Record
from bert_runtime.tasks import (
    TextClassification,
    TokenClassification,
)

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["my", "card", "is", "lost", "at", "the", "bank", "and", "where", "can", "i", "see", "a", "good", "film"]
TASK = TextClassification(labels=("x", "y"))

Fit = Callable[..., FineTuning]


@pytest.fixture(scope="module")
def examples(classifier_checkpoint: Path) -> ExampleDataset:
    """40 texts of 1 to 15 words."""
    rows = [
        Record({"text": " ".join(WORDS[: 1 + 7 * i % 15]), "label": "xy"[i % 2]}, Path("x.jsonl"), i)
        for i in range(1, 41)
    ]
    tokenizer = open_checkpoint(classifier_checkpoint).text_tokenizer()
    return ExampleDataset(TASK, [TASK.example(row) for row in rows], tokenizer)


@pytest.fixture
def fitted(examples: ExampleDataset, classifier_checkpoint: Path, tmp_path: Path) -> Fit:
    """Trains without dropout and returns the module."""

    def run(module_class: type[FineTuning] = FineTuning, resume: bool = False, **changes: Any) -> FineTuning:
        settings = TrainSettings(**{"epochs": 2, "batch_size": 8, "lr": 1e-3, "precision": "fp32"} | changes)
        pl.seed_everything(0, verbose=False)
        model = load_model(open_checkpoint(classifier_checkpoint), TASK, new_head=True)
        _without_dropout(model)
        module = module_class(model, examples, settings, "fp32")
        fit(module, examples, examples, settings, ChosenPrecision("fp32", {}), tmp_path / "state", resume=resume)
        return module

    return run


def _without_dropout(model: TaskModel) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0


def steps(module: FineTuning, name: str) -> list[float]:
    return [row[name] for row in module.rows if name in row]


def test_accumulated_batches_are_one_batch_of_their_joint_size(fitted: Fit) -> None:
    whole, parts = fitted(batch_size=20), fitted(batch_size=5, gradient_accumulation_steps=4)
    assert len(steps(whole, "loss")) == 4
    assert steps(parts, "loss") == pytest.approx(steps(whole, "loss"), rel=1e-4)
    assert steps(parts, "lr") == steps(whole, "lr")
    expected = dict(whole.model.named_parameters())
    for name, parameter in parts.model.named_parameters():
        # Attention does not depend on the bias of its keys: all that AdamW sees there is rounding, scaled up.
        assert name.endswith("key.bias") or torch.allclose(parameter, expected[name], atol=1e-4), name


def test_warm_up_and_decay_count_steps_of_the_optimizer(fitted: Fit) -> None:
    """40 items in batches of 4: 10 batches, of which 3 and what is left make a step, so 4 steps in each of 2 epochs."""
    rates = steps(fitted(batch_size=4, gradient_accumulation_steps=3, warmup_ratio=0.25), "lr")
    assert rates == pytest.approx([0, 5e-4, *(1e-3 * (8 - step) / 6 for step in range(2, 8))])
    schedule = linear_schedule(8, 0.25)
    assert [schedule(0), schedule(2), schedule(8)] == [0, 1, 0]


@pytest.mark.parametrize(("steps", "rates"), [(1, [1.0]), (4, [1.0, 0.75, 0.5, 0.25])])
def test_without_warm_up_the_first_step_has_the_whole_rate(steps: int, rates: list[float]) -> None:
    schedule = linear_schedule(steps, 0.0)
    assert [schedule(step) for step in range(steps)] == rates
    theirs = transformers.get_linear_schedule_with_warmup(
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1.0), 0, steps
    )
    assert theirs.get_last_lr() == [rates[0]]


def rates_of(model: TaskModel) -> dict[str, float]:
    groups = parameter_groups(model, 0.01, 1.0, 0.5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rates = {names[id(p)]: group["lr"] for group in groups for p in group["params"]}
    assert len(rates) == sum(len(group["params"]) for group in groups) == len(names)
    for group in groups:
        assert all(group["weight_decay"] == (0.01 if p.ndim >= 2 else 0) for p in group["params"] if group["lr"] <= 1)
    return rates


def test_lower_layers_learn_more_slowly(toy_config: EncoderConfig) -> None:
    rates = rates_of(TaskModel(toy_config, TASK))
    for name, rate in rates.items():
        start = {"head": 1.0, "encoder.layers.1": 0.5, "encoder.layers.0": 0.25, "encoder.embeddings": 0.125}
        assert rate == next(value for prefix, value in start.items() if name.startswith(prefix)), name


def test_the_loop_trains_lower_layers_more_slowly(fitted: Fit, classifier_checkpoint: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    start = load_model(source, TASK, new_head=True).encoder.embeddings.norm.weight.detach()

    def moved(**changes: Any) -> float:
        return float((fitted(**changes).model.encoder.embeddings.norm.weight - start).abs().max().detach())

    assert moved(layer_lr_decay=0.1) == pytest.approx(moved() * 0.1**3, rel=0.2)


def test_the_loop_smooths_labels(fitted: Fit) -> None:
    assert steps(fitted(label_smoothing=0.5), "loss")[0] != steps(fitted(), "loss")[0]


def test_shared_layers_learn_as_their_topmost_use_does(toy_config: EncoderConfig) -> None:
    shared = EncoderConfig(**{**vars(toy_config), "num_layers": 6, "num_layer_groups": 2})
    rates = rates_of(TaskModel(shared, TASK))
    assert rates["encoder.layers.1.attention.query.weight"] == 0.5  # layers 4 to 6
    assert rates["encoder.layers.0.attention.query.weight"] == 0.5**4  # layers 1 to 3
    assert rates["encoder.embeddings.token.weight"] == 0.5**7


def test_a_linear_chain_keeps_its_rate(toy_config: EncoderConfig) -> None:
    model = TaskModel(toy_config, TokenClassification(labels=("O", "B-x"), crf=True))
    *_, chain = parameter_groups(model, 0.01, 1e-4, 0.9)
    assert [p.shape for p in chain["params"]] == [(4, 2)]
    assert (chain["lr"], chain["weight_decay"]) == (1e-2, 0)


class _Scored(FineTuning):
    """Has the dev metrics that the test wants, one an epoch."""

    scores = (0.5, 0.7, float("nan"), 0.7, 0.9, 0.9)

    def log_dict(self, dictionary: Any, **options: Any) -> None:
        super().log_dict({**dictionary, "dev_accuracy": self.scores[self.current_epoch]}, **options)


class _Interrupted(_Scored):
    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        if self.current_epoch == 3:
            raise KeyboardInterrupt
        return super().training_step(batch, index)


def epochs(module: FineTuning) -> list[float]:
    return [entry["epoch"] for entry in module.history]


def test_training_stops_when_the_dev_metric_does_not_get_better(fitted: Fit) -> None:
    """The same value again is not better, and neither is one that is not defined."""
    assert epochs(fitted(_Scored, epochs=6, patience=2)) == [1, 2, 3, 4]
    assert epochs(fitted(_Scored, epochs=6, patience=3)) == [1, 2, 3, 4, 5, 6]
    assert epochs(fitted(_Scored, epochs=6)) == [1, 2, 3, 4, 5, 6]


def test_a_resumed_run_goes_on_counting(fitted: Fit) -> None:
    with pytest.raises(TrainingError, match="interrupted"):
        fitted(_Interrupted, epochs=6, patience=2)
    assert epochs(fitted(_Scored, epochs=6, patience=2, resume=True)) == [1, 2, 3, 4]
    # The state is that of a run which stopped and then lost its process: there is nothing left to train.
    assert epochs(fitted(_Scored, epochs=6, patience=2, resume=True)) == [1, 2, 3, 4]


def test_the_report_says_whether_training_stopped_early(classifier_checkpoint: Path, tmp_path: Path) -> None:
    data = tmp_path / "x.csv"
    data.write_text("text,label\n" + "".join(f"{word},{'xy'[i % 2]}\n" for i, word in enumerate(WORDS)))
    for patience, early in ((2, True), (None, False)):
        settings = TrainSettings(epochs=4, lr=1e-12, patience=patience, precision="fp32")  # learns nothing
        out = tmp_path / str(patience)
        report = fine_tune("text-classification", classifier_checkpoint, data, data, out, settings)
        assert (report["stopped_early"], len(report["epochs"])) == (early, 3 if early else 4)


def order(examples: ExampleDataset, seed: int, epoch: int, batch_size: int = 6) -> list[list[int]]:
    loader = train_loader(examples, batch_size, seed, sort_by_length=True)
    loader.batch_sampler.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
    return [batch.sequence_indices.tolist() for batch in loader]


def test_batches_of_like_length_hold_every_item_once(examples: ExampleDataset) -> None:
    batches = order(examples, 0, 0)
    assert sorted(row for batch in batches for row in batch) == list(range(40))
    assert [len(batch) for batch in batches] == [6] * 6 + [4]
    assert order(examples, 0, 0) == batches
    assert order(examples, 0, 1) != batches
    assert order(examples, 1, 0) != batches
    assert order(examples, 0, 0, batch_size=64) != order(examples, 0, 1, batch_size=64)  # fewer items than a batch


def test_batches_of_like_length_have_less_padding(examples: ExampleDataset) -> None:
    def tokens(sort: bool) -> int:
        return sum(each.input_ids.numel() for each in train_loader(examples, 6, 0, sort_by_length=sort))

    real = sum(examples.lengths())
    assert tokens(True) - real < 0.5 * (tokens(False) - real)


def test_batches_of_like_length_come_in_random_order() -> None:
    """An epoch that goes from short to long, or always the same way, would be a curriculum."""
    sampler = LengthGroupedSampler(range(1000), batch_size=10, seed=0)
    firsts = np.array(list(sampler)).reshape(-1, 10).mean(axis=1)
    assert abs(np.corrcoef(firsts, np.arange(100))[0, 1]) < 0.3


def test_the_loop_tells_the_sampler_its_epoch(fitted: Fit) -> None:
    seen: list[list[int]] = []

    class Seen(FineTuning):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            seen.append(batch.sequence_indices.tolist())
            return super().training_step(batch, index)

    module = fitted(Seen, sort_by_length=True)
    assert seen == [*order(module.dev, 0, 0, 8), *order(module.dev, 0, 1, 8)]


def test_gradients_are_the_same_when_layers_are_computed_twice(
    examples: ExampleDataset, toy_config: EncoderConfig
) -> None:
    """With dropout, which must be drawn alike both times."""
    model = TaskModel(toy_config, TASK).train()
    batch = examples.collate(range(8))
    found = []
    for checkpointing in (False, True):
        model.encoder.checkpointing = checkpointing
        model.zero_grad()
        torch.manual_seed(0)
        logits = model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        build_objective(model.task).loss(model, logits, batch.targets).backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(found[0]) == len(list(model.parameters()))
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_layers_are_computed_twice_in_training_alone(
    examples: ExampleDataset, toy_config: EncoderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []

    def counted(layer: torch.nn.Module, *arguments: Any, use_reentrant: bool) -> Any:
        calls.append(use_reentrant)
        return layer(*arguments)

    monkeypatch.setattr("bert_models.layers.checkpoint", counted)
    model = TaskModel(toy_config, TASK)
    model.encoder.checkpointing = True
    batch = examples.collate(range(2))
    for training, expected in ((False, []), (True, [False, False])):
        model.train(training)
        model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        assert calls == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="fp16 is there")
def test_fp16_needs_cuda(classifier_checkpoint: Path, tmp_path: Path) -> None:
    """Nothing is read or written before."""
    settings = TrainSettings(precision="fp16")
    with pytest.raises(TrainingError, match="precision fp16 needs CUDA, and torch finds no CUDA device; take bf16"):
        fine_tune("text-classification", classifier_checkpoint, "no.csv", "no.csv", tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()


def test_the_new_settings_are_checked_with_the_old() -> None:
    with pytest.raises(TrainingError) as caught:
        TrainSettings(
            epochs=0,
            gradient_accumulation_steps=0,
            patience=0,
            layer_lr_decay=1.5,
            label_smoothing=1.0,
            class_weights="some",
        )
    assert str(caught.value).split("; ") == [
        "epochs must be at least 1, found 0",
        "gradient_accumulation_steps must be at least 1, found 0",
        "patience must be at least 1, found 0",
        "layer_lr_decay must lie in (0, 1], found 1.5",
        "label_smoothing must lie in [0, 1), found 1.0",
        "class_weights must be balanced, found 'some'",
    ]
