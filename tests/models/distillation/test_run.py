"""Distillation of fine-tuned teachers into students of all kinds."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Encoding
from torch import Tensor

from bert_models import EncoderConfig, TrainingError, load_model, open_checkpoint
from bert_models.distillation import DistillationSettings, distill
from bert_models.distillation.module import Distillation
from bert_models.distillation.teacher import Teacher
from bert_models.errors import TrainingInterruptedError
from bert_models.training.precision import ChosenPrecision
from bert_models.weights import read_weights
from bert_runtime.errors import DataError
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import SparseEmbedding

from .teachers import MASK, ROWS, SETTINGS, TEACHERS, TEXTS, save_checkpoint, write


@pytest.mark.parametrize("teacher", TEACHERS, indirect=True)
def test_student_learns_from_every_kind_of_teacher_without_labels(
    teacher: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The training file has no labels, except where a task's input has them."""
    kind = request.node.callspec.params["teacher"]
    unlabelled = [
        {
            k: v
            for k, v in row.items()
            if k in ("text", "text_pair", "tokens", "question", "context", "query", "documents")
        }
        for row in ROWS[kind]
    ]
    train, dev = write(tmp_path / "train.jsonl", unlabelled, 6), write(tmp_path / "dev.jsonl", ROWS[kind])
    weights = DistillationSettings(hard_weight=0.0, hidden_weight=0.1, attention_weight=0.1)
    report = distill(teacher, "2", train, dev, tmp_path / "student", SETTINGS, weights)
    losses = [epoch["train_loss"] for epoch in report["epochs"]]
    assert losses[-1] < 0.6 * losses[0]
    student = open_checkpoint(tmp_path / "student")
    assert student.config.num_layers == 2
    assert student.task().to_dict() == report["task"]
    assert student.task().name == open_checkpoint(teacher).task().name
    assert getattr(student.task(), "labels", None) == getattr(TEACHERS[kind][1], "labels", None)
    assert report["distillation"]["hard_weight"] == 0.0
    assert report["teacher"]["sha256"] == open_checkpoint(teacher).sha256()
    load_model(student, student.task())
    assert not any("projection" in name for name in read_weights(tmp_path / "student"))


@pytest.mark.parametrize("teacher", ["single_label"], indirect=True)
def test_hard_weight_decides_between_labels_and_teacher(teacher: Path, tmp_path: Path) -> None:
    """The untrained teacher contradicts the labels."""
    train, dev = (
        write(tmp_path / "train.jsonl", ROWS["single_label"], 10),
        write(tmp_path / "dev.jsonl", ROWS["single_label"]),
    )
    accuracy = {
        weight: distill(
            teacher, "2", train, dev, tmp_path / str(weight), replace(SETTINGS, epochs=8),
            DistillationSettings(soft_weight=1.0, hard_weight=weight),
        )["epochs"][-1]["accuracy"]
        for weight in (0.0, 50.0)
    }  # fmt: skip
    assert accuracy[50.0] == 1.0
    assert accuracy[0.0] < 0.7


@pytest.mark.parametrize("teacher", ["single_label"], indirect=True)
def test_stored_outputs_of_the_teacher_serve_other_students_on_the_same_rows(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, dev = (write(tmp_path / f"{name}.jsonl", ROWS["single_label"], 2) for name in ("train", "dev"))
    calls: list[int] = []
    compute = Teacher.outputs
    monkeypatch.setattr(Teacher, "outputs", lambda *given, **options: calls.append(1) or compute(*given, **options))
    stored = tmp_path / "outputs.pt"
    settings = replace(SETTINGS, epochs=1)
    reports = [
        distill(teacher, student, train, dev, tmp_path / name, settings, teacher_outputs=path)
        for student, name, path in (("2", "a", None), ("2", "b", stored), ("2", "c", stored), ("1", "d", stored))
    ]
    assert len(calls) == 2
    assert len({report["epochs"][0]["train_loss"] for report in reports[:3]}) == 1
    more = write(tmp_path / "more.jsonl", ROWS["single_label"], 3)
    distill(teacher, "1", more, dev, tmp_path / "e", settings, teacher_outputs=stored)
    assert len(calls) == 3


@pytest.mark.parametrize("teacher", ["single_label", "token-classification"], indirect=True)
def test_outputs_may_come_from_a_faster_model(
    teacher: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ROWS[request.node.callspec.params["teacher"]]
    train, dev = (write(tmp_path / f"{name}.jsonl", rows, 2) for name in ("train", "dev"))
    settings = replace(SETTINGS, epochs=1)
    slow = distill(teacher, "1", train, dev, tmp_path / "slow", settings)
    model = load_model(open_checkpoint(teacher), open_checkpoint(teacher).task())

    @torch.no_grad()
    def compute(encodings: Sequence[Encoding]) -> list[FloatArray]:
        inputs = [torch.tensor([[item.ids, item.attention_mask, item.type_ids]]) for item in encodings]
        return [model(*given[0][:, None])[0].numpy() for given in inputs]

    monkeypatch.setattr(Teacher, "outputs", None)
    fast = distill(teacher, "1", train, dev, tmp_path / "fast", settings, compute_outputs=compute)
    losses = [report["epochs"][0]["train_loss"] for report in (fast, slow)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("teacher", ["single_label"], indirect=True)
def test_student_may_have_another_tokenizer(teacher: Path, other_tokenizer: Path, tmp_path: Path) -> None:
    train, dev = (
        write(tmp_path / "train.jsonl", ROWS["single_label"], 6),
        write(tmp_path / "dev.jsonl", ROWS["single_label"]),
    )
    report = distill(
        teacher, str(other_tokenizer), train, dev, tmp_path / "out", SETTINGS, DistillationSettings(hard_weight=0)
    )
    assert report["epochs"][-1]["train_loss"] < 0.6 * report["epochs"][0]["train_loss"]
    assert open_checkpoint(tmp_path / "out").family.name == "distilbert"
    for name in ("hidden_weight", "attention_weight"):
        weights = DistillationSettings(**{name: 1.0})
        with pytest.raises(TrainingError, match=f"{name} needs a student with the tokenizer of its teacher"):
            distill(teacher, str(other_tokenizer), train, dev, tmp_path / "no", SETTINGS, weights)


@pytest.mark.parametrize("teacher", ["token-classification"], indirect=True)
def test_outputs_per_token_need_the_same_tokenizer(teacher: Path, other_tokenizer: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", ROWS["token-classification"])
    with pytest.raises(TrainingError, match="token-classification needs a student with the tokenizer of its teacher"):
        distill(teacher, str(other_tokenizer), file, file, tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("teacher", ["sentence-embedding"], indirect=True)
def test_layers_are_compared_for_texts_of_very_different_lengths(teacher: Path, tmp_path: Path) -> None:
    rows = [{"text": "my card", "text_pair": "the bank is open " * (4 + number)} for number in range(6)]
    train = write(tmp_path / "train.jsonl", rows)
    weights = DistillationSettings(hard_weight=0.0, hidden_weight=1.0)
    report = distill(teacher, "1", train, train, tmp_path / "out", SETTINGS, weights)
    assert report["metric"] == "ndcg_at_10"


@pytest.mark.parametrize("teacher", ["single_label"], indirect=True)
def test_narrower_student_is_projected_to_the_teachers_width(
    teacher: Path, toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path
) -> None:
    narrow = save_checkpoint(tmp_path / "narrow", toy_vocab, replace(toy_config, hidden_size=16), MASK)
    train, dev = (
        write(tmp_path / "train.jsonl", ROWS["single_label"], 6),
        write(tmp_path / "dev.jsonl", ROWS["single_label"]),
    )
    weights = DistillationSettings(soft_weight=0.0, hard_weight=0.0, hidden_weight=1.0)
    report = distill(teacher, str(narrow), train, dev, tmp_path / "out", SETTINGS, weights)
    assert report["epochs"][-1]["train_loss"] < 0.7 * report["epochs"][0]["train_loss"]
    load_model(open_checkpoint(tmp_path / "out"), TEACHERS["single_label"][1])  # the projection is not saved


def measured_precision(passes: int, *arguments: Any) -> ChosenPrecision:
    """Draw random numbers, as the passes of a measurement do for dropout."""
    torch.rand(passes)
    return ChosenPrecision("fp32", {})


@pytest.mark.parametrize("teacher", ["single_label"], indirect=True)
def test_projection_does_not_depend_on_how_long_precisions_were_measured(
    teacher: Path, toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = save_checkpoint(tmp_path / "narrow", toy_vocab, replace(toy_config, hidden_size=16), MASK)
    file = write(tmp_path / "rows.jsonl", ROWS["single_label"])
    weights = DistillationSettings(soft_weight=0.0, hard_weight=0.0, hidden_weight=1.0)
    losses = []
    for passes in (1, 2):
        monkeypatch.setattr("bert_models.training.run.choose_precision", partial(measured_precision, passes))
        report = distill(teacher, str(narrow), file, file, tmp_path / str(passes), replace(SETTINGS, epochs=1), weights)
        losses.append(report["epochs"][0]["train_loss"])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("teacher", ["single_label"], indirect=True)
def test_invalid_students_and_teachers_are_refused(
    teacher: Path, toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path
) -> None:
    file = write(tmp_path / "rows.jsonl", ROWS["single_label"])
    arguments: list[Any] = [file, file, tmp_path / "out", SETTINGS]
    with pytest.raises(TrainingError, match=r"a number of the teacher's layers, a size of bert .*mini.* found 'huge'"):
        distill(teacher, "huge", *arguments)
    with pytest.raises(TrainingError, match="1 to 4 layers, as many as its teacher has, found 5"):
        distill(teacher, "5", *arguments)
    with pytest.raises(TrainingError, match="need a hard_weight above 0"):
        smooth = replace(SETTINGS, label_smoothing=0.1)
        distill(teacher, "2", file, file, tmp_path / "out", smooth, DistillationSettings(hard_weight=0))
    masks = save_checkpoint(tmp_path / "masks", toy_vocab, toy_config, MASK)
    with pytest.raises(TrainingError, match="a teacher of fill-mask is distilled on a corpus: give --corpus"):
        distill(masks, "1", *arguments)
    sparse = save_checkpoint(
        tmp_path / "sparse", toy_vocab, toy_config, SparseEmbedding(vocab_size=toy_config.vocab_size)
    )
    with pytest.raises(
        TrainingError, match="found sparse-embedding; train the smaller model instead: bert-export train"
    ):
        distill(sparse, "1", *arguments)
    other = write(tmp_path / "other.jsonl", [*ROWS["single_label"], {"text": "hi", "label": "thanks"}])
    with pytest.raises(DataError, match=r"other\.jsonl:7: .*'thanks'"):
        distill(teacher, "2", other, file, tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("teacher", ["crf"], indirect=True)
def test_crf_transitions_are_copied_from_the_teacher_without_labels(
    teacher: Path, toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path
) -> None:
    student = save_checkpoint(tmp_path / "plain", toy_vocab, toy_config, MASK)
    file = write(tmp_path / "rows.jsonl", ROWS["crf"])
    settings = replace(SETTINGS, epochs=1)
    distill(teacher, str(student), file, file, tmp_path / "out", settings, DistillationSettings(hard_weight=0))
    chains = [read_weights(folder)["crf.transitions"] for folder in (teacher, tmp_path / "out")]
    assert torch.equal(*chains)
    assert chains[0].abs().sum() > 0


@pytest.mark.parametrize("teacher", ["question-answering"], indirect=True)
def test_teacher_reads_the_windows_of_its_student(
    teacher: Path, toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path
) -> None:
    """The teacher's own limit is lower: with it, the text would become more windows than the student's."""
    settings = json.loads((teacher / "tokenizer_config.json").read_text())
    (teacher / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 16}))
    student = save_checkpoint(tmp_path / "plain", toy_vocab, toy_config, MASK)
    long = {"question": "what", "context": " ".join(TEXTS), "answers": [{"text": "hello", "answer_start": 0}]}
    file = write(tmp_path / "rows.jsonl", [long, *ROWS["question-answering"]])
    num_tokens: list[int] = []
    outputs = Teacher.outputs

    def counted(self: Teacher, examples: Any, *given: Any, **options: Any) -> list[Tensor]:
        found = outputs(self, examples, *given, **options)
        num_tokens.extend(map(len, found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Teacher, "outputs", counted)
        distill(teacher, str(student), file, file, tmp_path / "out", replace(SETTINGS, epochs=1))
    assert len(num_tokens) == 7
    assert max(num_tokens) > 16
    small = save_checkpoint(tmp_path / "small", toy_vocab, replace(toy_config, max_positions=128), MASK)
    with pytest.raises(TrainingError, match="the teacher's 64 tokens for the student, found 128; give --max-tokens 64"):
        distill(teacher, str(small), file, file, tmp_path / "no", SETTINGS)


@pytest.mark.parametrize("teacher", ["single_label"], indirect=True)
def test_a_run_is_resumed_from_the_same_weights_wherever_they_lie(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    student = Path(shutil.copytree(teacher, tmp_path / "student"))
    train, dev = (write(tmp_path / f"{name}.jsonl", ROWS["single_label"], 2) for name in ("train", "dev"))
    step, steps = Distillation.training_step, iter([False] * 3 + [True])

    def training_step(self: Distillation, *given: Any) -> Tensor:
        if next(steps, False):
            raise KeyboardInterrupt
        return step(self, *given)

    monkeypatch.setattr(Distillation, "training_step", training_step)
    with pytest.raises(TrainingInterruptedError):
        distill(teacher, "./student", train, dev, tmp_path / "out", SETTINGS)
    with pytest.raises(TrainingError, match="the interrupted run was another one: distillation was"):
        other = DistillationSettings(hard_weight=0.0)
        distill(teacher, "./student", train, dev, tmp_path / "out", SETTINGS, other, resume=True)
    report = distill(Path("student"), str(student), train, dev, tmp_path / "out", SETTINGS, resume=True)
    assert (report["student"], report["teacher"]["name"]) == (str(student), "student")
