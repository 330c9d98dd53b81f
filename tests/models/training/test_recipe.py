"""Effects of the settings of fine-tuning on the training loop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as pl
import pytest
import torch

from bert_models import (
    EncoderConfig,
    TaskModel,
    TrainingError,
    load_model,
    open_checkpoint,
)
from bert_models.dropout import set_dropout
from bert_models.layers import SelfAttention
from bert_models.training import TrainSettings, fine_tune
from bert_models.training.data import ExampleDataset, TensorBatch, train_loader
from bert_models.training.loop import fit
from bert_models.training.module import FineTuning
from bert_models.training.objectives import build_objective
from bert_models.training.optimizer import linear_schedule
from bert_models.training.precision import ChosenPrecision
from bert_runtime.records import Record
from bert_runtime.tasks import (
    TextClassification,
)

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
        set_dropout(model, 0.0)
        module = module_class(model, examples, settings, "fp32")
        fit(module, examples, examples, settings, ChosenPrecision("fp32", {}), tmp_path / "state", resume=resume)
        return module

    return run


def steps(module: FineTuning, name: str) -> list[float]:
    return [row[name] for row in module.rows if name in row]


def test_accumulated_batches_match_one_larger_batch(fitted: Fit) -> None:
    whole, parts = fitted(batch_size=20), fitted(batch_size=5, gradient_accumulation_steps=4)
    assert len(steps(whole, "loss")) == 4
    assert steps(parts, "loss") == pytest.approx(steps(whole, "loss"), rel=1e-4)
    assert steps(parts, "lr") == steps(whole, "lr")
    expected = dict(whole.model.named_parameters())
    for name, parameter in parts.model.named_parameters():
        # Attention does not depend on the bias of keys: its gradient is rounding error, which AdamW scales up.
        assert name.endswith("key.bias") or torch.allclose(parameter, expected[name], atol=1e-4), name


class _Gradients(FineTuning):
    """Keeps the norm of the gradients of every step, before they are clipped."""

    def on_fit_start(self) -> None:
        self.norms: list[float] = []

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        super().on_before_optimizer_step(optimizer)
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        self.norms.append(float(torch.nn.utils.get_total_norm(gradients)))


class _Weighted(_Gradients):
    """Weights the classes, so that batches of different labels weigh differently."""

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self.objective.class_weights = torch.tensor([0.1, 1.9])


def test_accumulated_batches_count_by_the_weight_of_their_labels(fitted: Fit) -> None:
    whole = fitted(_Weighted, epochs=1, batch_size=40)
    parts = fitted(_Weighted, epochs=1, batch_size=3, gradient_accumulation_steps=14)
    assert steps(parts, "loss") == pytest.approx(steps(whole, "loss"), rel=1e-4)
    assert parts.norms == pytest.approx(whole.norms, rel=1e-4)


def test_shorter_last_step_of_an_epoch_has_the_gradient_of_its_mean_loss(fitted: Fit) -> None:
    """40 items in batches of 8 are 5 batches: a step of 4 batches, then one of 1 batch."""
    parts = fitted(_Gradients, batch_size=8, gradient_accumulation_steps=4, epochs=1, lr=1e-12)
    batches = fitted(_Gradients, batch_size=8, epochs=1, lr=1e-12)
    assert (len(parts.norms), len(batches.norms)) == (2, 5)
    assert parts.norms[-1] == pytest.approx(batches.norms[-1], rel=1e-4)


def test_warmup_and_decay_count_optimizer_steps(fitted: Fit) -> None:
    """40 items in batches of 4 are 10 batches: steps of 3, 3, 3 and 1 batches, so 4 steps in each of 2 epochs."""
    rates = steps(fitted(batch_size=4, gradient_accumulation_steps=3, warmup_ratio=0.25), "lr")
    assert rates == pytest.approx([0, 5e-4, *(1e-3 * (8 - step) / 6 for step in range(2, 8))])
    schedule = linear_schedule(8, 0.25)
    assert [schedule(0), schedule(2), schedule(8)] == [0, 1, 0]
    assert linear_schedule(1, 0.1)(0) == 1  # a single step trains


def test_layer_lr_decay_shrinks_updates_of_the_embeddings(fitted: Fit, classifier_checkpoint: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    start = load_model(source, TASK, new_head=True).encoder.embeddings.norm.weight.detach()

    def moved(**changes: Any) -> float:
        return float((fitted(**changes).model.encoder.embeddings.norm.weight - start).abs().max().detach())

    assert moved(layer_lr_decay=0.1) == pytest.approx(moved() * 0.1**3, rel=0.2)


def test_label_smoothing_changes_the_training_loss(fitted: Fit) -> None:
    assert steps(fitted(label_smoothing=0.5), "loss")[0] != steps(fitted(), "loss")[0]


class _Scored(FineTuning):
    """Logs given dev metrics, one per epoch."""

    scores = (0.5, 0.7, float("nan"), 0.7, 0.9, 0.9)

    def log_dict(self, dictionary: Any, **options: Any) -> None:
        super().log_dict({**dictionary, "dev_accuracy": self.scores[self.current_epoch]}, **options)


class _ScoredOtherwise(_Scored):
    """Has macro F1s that fall, and accuracies that rise."""

    scores = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

    def _score(self, parts: Any) -> dict[str, float]:
        falling = 0.5 - self.current_epoch
        return {**super()._score(parts), "accuracy": self.scores[self.current_epoch], "macro_f1": falling}


class _Interrupted(_Scored):
    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        if self.current_epoch == 3:
            raise KeyboardInterrupt
        return super().training_step(batch, index)


def epochs(module: FineTuning) -> list[float]:
    return [entry["epoch"] for entry in module.history]


def test_patience_stops_after_epochs_without_improvement(fitted: Fit) -> None:
    """Neither an equal nor an undefined metric is an improvement."""
    assert epochs(fitted(_Scored, epochs=6, patience=2)) == [1, 2, 3, 4]
    assert epochs(fitted(_Scored, epochs=6, patience=3)) == [1, 2, 3, 4, 5, 6]
    assert epochs(fitted(_Scored, epochs=6)) == [1, 2, 3, 4, 5, 6]


def test_patience_follows_the_chosen_metric(fitted: Fit) -> None:
    assert epochs(fitted(_ScoredOtherwise, epochs=3, patience=1)) == [1, 2, 3]
    assert epochs(fitted(_ScoredOtherwise, epochs=3, patience=1, metric="macro_f1")) == [1, 2]
    assert epochs(fitted(_ScoredOtherwise, epochs=3, patience=1, class_weights="balanced")) == [1, 2]


def test_resumed_run_keeps_the_patience_count(fitted: Fit) -> None:
    with pytest.raises(TrainingError, match="interrupted"):
        fitted(_Interrupted, epochs=6, patience=2)
    assert epochs(fitted(_Scored, epochs=6, patience=2, resume=True)) == [1, 2, 3, 4]
    # The state is that of a run that was killed after it stopped: nothing is left to train.
    assert epochs(fitted(_Scored, epochs=6, patience=2, resume=True)) == [1, 2, 3, 4]


def test_report_says_whether_training_stopped_early(classifier_checkpoint: Path, tmp_path: Path) -> None:
    data = tmp_path / "x.csv"
    data.write_text("text,label\n" + "".join(f"{word},{'xy'[i % 2]}\n" for i, word in enumerate(WORDS)))
    for patience, early in ((2, True), (None, False)):
        settings = TrainSettings(epochs=4, lr=1e-12, patience=patience, precision="fp32")  # learns nothing
        out = tmp_path / str(patience)
        report = fine_tune("text-classification", classifier_checkpoint, data, data, out, settings)
        assert (report["stopped_early"], len(report["epochs"])) == (early, 3 if early else 4)


def test_frozen_embeddings_stay_and_all_else_is_trained(classifier_checkpoint: Path, tmp_path: Path) -> None:
    (data := tmp_path / "x.csv").write_text("text,label\n" + "hello,a\nmy card,b\n" * 8)
    settings = TrainSettings(epochs=1, lr=1e-2, batch_size=4, precision="fp32", freeze_embeddings=True)
    fine_tune("text-classification", classifier_checkpoint, data, data, tmp_path / "out", settings)
    before, after = (
        load_model(source, source.task()).encoder.state_dict()
        for source in map(open_checkpoint, (classifier_checkpoint, tmp_path / "out"))
    )
    same = {name for name, weights in before.items() if torch.equal(weights, after[name])}
    assert same == {"embeddings.token.weight"}


def test_dropout_is_that_of_the_settings_and_the_checkpoint_keeps_its_own(
    classifier_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[float] = []

    def train(module: FineTuning, *arguments: Any, **options: Any) -> dict[str, float]:
        found.extend(part.p for part in module.model.modules() if isinstance(part, torch.nn.Dropout))
        found.extend(part.attention_dropout for part in module.model.modules() if isinstance(part, SelfAttention))
        return fit(module, *arguments, **options)

    monkeypatch.setattr("bert_models.training.run.fit", train)
    (data := tmp_path / "x.csv").write_text("text,label\n" + "hello,a\nmy card,b\n" * 8)
    fine_tune(
        "text-classification", classifier_checkpoint, data, data, tmp_path / "out",
        TrainSettings(epochs=1, precision="fp32", dropout=0.25),
    )  # fmt: skip
    assert set(found) == {0.25}
    kept, before = (open_checkpoint(path).config for path in (tmp_path / "out", classifier_checkpoint))
    assert (kept.hidden_dropout, kept.attention_dropout) == (before.hidden_dropout, before.attention_dropout)


def order(examples: ExampleDataset, seed: int, epoch: int, batch_size: int = 6) -> list[list[int]]:
    loader = train_loader(examples, batch_size, seed, sort_by_length=True)
    loader.batch_sampler.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
    return [batch.sequence_indices.tolist() for batch in loader]


def test_loop_sets_the_epoch_of_the_sampler(fitted: Fit) -> None:
    seen: list[list[int]] = []

    class Seen(FineTuning):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            seen.append(batch.sequence_indices.tolist())
            return super().training_step(batch, index)

    module = fitted(Seen, sort_by_length=True)
    assert seen == [*order(module.dev, 0, 0, 8), *order(module.dev, 0, 1, 8)]


def test_gradient_checkpointing_keeps_gradients(examples: ExampleDataset, toy_config: EncoderConfig) -> None:
    """With dropout, which must be the same in both forward passes."""
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


def test_gradient_checkpointing_is_off_in_evaluation(
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


class _Watched(FineTuning):
    """Records the mode of the encoder at every step."""

    modes: ClassVar[list[bool]] = []

    def training_step(self, batch: TensorBatch, index: int) -> torch.Tensor:
        self.modes.append(self.model.encoder.embeddings.dropout.training)
        return super().training_step(batch, index)


def test_dropout_is_on_in_training_and_off_afterwards(
    examples: ExampleDataset, classifier_checkpoint: Path, tmp_path: Path
) -> None:
    source = open_checkpoint(classifier_checkpoint)
    model = load_model(source, TextClassification(labels=("x", "y")), new_head=True)
    settings = TrainSettings(epochs=2, batch_size=20, precision="fp32")
    module = _Watched(model, examples, settings, "fp32")
    fit(module, examples, examples, settings, ChosenPrecision("fp32", {}), tmp_path, resume=False)
    assert _Watched.modes == [True] * 4
    assert not model.encoder.embeddings.dropout.training
