"""The parts of fine-tuning; the command from file to checkpoint is tested in tests/cli/test_train.py."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from bert_models import Checkpoint, CheckpointError, TaskModel, TrainingError, load_model, open_checkpoint
from bert_models.families import FAMILIES
from bert_models.training import TrainSettings
from bert_models.training.data import ExampleDataset, TensorBatch, dev_loader, train_loader
from bert_models.training.infer_task import infer_task
from bert_models.training.loop import fit
from bert_models.training.module import FineTuning
from bert_models.training.optimizer import parameter_groups
from bert_models.training.precision import ChosenPrecision, choose_precision
from bert_runtime.errors import DataError
from bert_runtime.numerics import FloatArray
from bert_runtime.records import Record
from bert_runtime.tasks import TextClassification, stack_single_window


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


@pytest.fixture(scope="module")
def classifier(classifier_checkpoint: Path) -> Checkpoint:
    """Trained for the labels greeting, farewell and question, in this order."""
    return open_checkpoint(classifier_checkpoint)


def read_labels(source: Checkpoint, *labels: object) -> tuple[str, ...]:
    task = infer_task("text-classification", source, records(list(labels)), records(list(labels)), {})
    assert isinstance(task, TextClassification)
    return task.labels


def test_labels_are_sorted_and_numbers_by_value(classifier: Checkpoint) -> None:
    assert read_labels(classifier, "b", "a") == ("a", "b")
    assert read_labels(classifier, 10, 9, "2") == ("2", "9", "10")


def test_known_labels_keep_their_order(classifier: Checkpoint) -> None:
    assert read_labels(classifier, "farewell", "question", "greeting") == ("greeting", "farewell", "question")
    assert read_labels(classifier, "greeting", "farewell") == ("farewell", "greeting")


def test_labels_of_another_task_do_not_count(classifier: Checkpoint) -> None:
    """`id2label` stays in config.json whatever head is trained; the architecture says whose labels they are."""
    other = replace(classifier, config_json={**classifier.config_json, "architectures": ["BertForTokenClassification"]})
    assert read_labels(other, "farewell", "question", "greeting") == ("farewell", "greeting", "question")


def test_all_strange_dev_labels_are_named(classifier: Checkpoint) -> None:
    train, dev = records(["a", "b"]), records(["a", "q", "r", "q"], "dev.jsonl")
    with pytest.raises(
        DataError,
        match=r"dev\.jsonl: labels that train\.jsonl does not have: 'q' \(line 2\), 'r' \(line 3\)",
    ):
        infer_task("text-classification", classifier, train, dev, {})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("translation", {}, "unknown task 'translation'; expected one of text-classification, "),
        (
            "next-sentence-prediction",
            {"problem_type": "regression"},
            "^next-sentence-.* has no setting problem_type; it has none$",
        ),
        ("text-classification", {"labels": ("a", "b")}, "^text-classification has no setting labels"),
        ("text-classification", {"problem_type": "ranking"}, "^text-classification: expected a problem type of "),
    ],
)
def test_what_is_no_task_to_train(classifier: Checkpoint, name: str, settings: dict[str, Any], message: str) -> None:
    rows = records(["a", "b"])
    with pytest.raises(TrainingError, match=message):
        infer_task(name, classifier, rows, rows, settings)


def test_task_that_the_family_has_no_head_for(classifier: Checkpoint) -> None:
    """Nothing is read of the rows before."""
    with pytest.raises(CheckpointError, match="distilbert has no head for 'next-sentence-prediction'; it has heads "):
        infer_task("next-sentence-prediction", replace(classifier, family=FAMILIES["distilbert"]), [], [], {})


def test_single_texts_are_items_of_their_own(examples: ExampleDataset) -> None:
    assert len(examples) == 40
    assert examples.items == [(i,) for i in range(40)]
    assert [int(target) for target in examples.targets] == [0, 1] * 20


def test_outputs_are_those_of_the_sequences_whatever_batch_they_were_in(examples: ExampleDataset) -> None:
    rows: dict[int, FloatArray] = {}
    for batch in dev_loader(examples):
        assert not rows.keys() & set(batch.sequence_indices.tolist())
        rows |= examples.split(
            batch, torch.stack([batch.sequence_indices.float(), batch.input_ids[:, 1].float()], dim=1)
        )
    found = examples.outputs(rows)
    expected = [[i, each.ids[1]] for i, each in enumerate(examples.encodings)]
    assert stack_single_window(found).tolist() == expected
    assert [each.input for each in found] == [each.inputs[0] for each in examples.examples]


def test_epochs_are_shuffled_differently_and_reproducibly(examples: ExampleDataset) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        loader = train_loader(examples, 8, seed)
        loader.batch_sampler.sampler.set_epoch(epoch)
        return [int(row) for batch in loader for row in batch.sequence_indices]

    assert sorted(order(0, 0)) == list(range(40))
    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_dev_batches_hold_every_row_once_with_its_target(examples: ExampleDataset) -> None:
    batches = list(dev_loader(examples))
    rows = torch.cat([batch.sequence_indices for batch in batches])
    targets = torch.cat([batch.targets for batch in batches])
    assert sorted(rows.tolist()) == list(range(40))
    assert [int(t) for t in targets] == [int(examples.examples[int(row)].target) for row in rows]


def test_biases_and_norms_are_not_decayed(classifier_checkpoint: Path) -> None:
    checkpoint = open_checkpoint(classifier_checkpoint)
    model = load_model(checkpoint, checkpoint.task())
    decayed, plain = parameter_groups(model, 0.01)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.01, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(p)] for p in plain["params"]} == {n for n in names.values() if n.endswith("bias") or "norm" in n}
    assert len(decayed["params"]) + len(plain["params"]) == len(names)


def test_precision_is_measured_unless_given(
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
    assert chosen.name == min(chosen.seconds_per_step, key=chosen.seconds_per_step.__getitem__)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "native", "warned"), [("bf16", False, True), ("bf16", True, False), ("fp32", False, False)]
)
def test_imitated_bf16_is_warned_of(monkeypatch: pytest.MonkeyPatch, name: str, native: bool, warned: bool) -> None:
    monkeypatch.setattr("bert_models.training.precision.has_instruction_set", lambda _: native)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said: list[str] = []
    ChosenPrecision(name, {}).report(said.append)
    assert [line.startswith("training in bf16, which this processor has no instructions for") for line in said] == (
        [True] if warned else []
    )


def test_settings_name_every_problem_at_once() -> None:
    with pytest.raises(TrainingError) as caught:
        TrainSettings(epochs=0, lr=-1.0, warmup_ratio=2.0, precision="fp8")
    for part in (
        "epochs must be at least 1",
        "lr must be positive",
        "warmup_ratio must lie in",
        "precision must be one of",
    ):
        assert part in str(caught.value)


def test_settings_are_json(tmp_path: Path) -> None:
    assert json.loads(json.dumps(vars(TrainSettings())))["batch_size"] == 32


class _Watched(FineTuning):
    """Notes in which mode the encoder was at every step."""

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
