"""Distillation: which layers a student has, what it is compared with, and that it learns what the teacher answers."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from bert_models import FAMILIES, EncoderConfig, TaskModel, TrainingError, load_model, open_checkpoint, save_model
from bert_models.corpus import TextFiles
from bert_models.distillation import DistillationSettings, distill, distill_language_model
from bert_models.distillation.language_model import DistilledLanguageModel
from bert_models.distillation.layers import LayerTrace, evenly_spaced_layers, matched_layers, student_from_layers
from bert_models.distillation.losses import SOFT_LOSSES, attention_distance, binary, categorical, soft_loss
from bert_models.distillation.teacher import Teacher
from bert_models.pretraining import PretrainSettings
from bert_models.training import TrainSettings
from bert_models.weights import read_weights
from bert_runtime.errors import DataError
from bert_runtime.tasks import (
    TASKS,
    FillMask,
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

from ..toy import inputs, randomize, toy_config

pytestmark = pytest.mark.usefixtures("one_thread")

LABELS = ("greeting", "farewell", "question")
MASK = FillMask(mask_token="[MASK]", mask_token_id=4)

TEACHERS: dict[str, tuple[str, Task]] = {
    "single_label": ("bert", TextClassification(labels=LABELS)),
    "multi_label": ("bert", TextClassification(labels=LABELS, problem_type="multi_label")),
    "regression": ("bert", TextClassification(labels=("score",), problem_type="regression")),
    "next-sentence-prediction": ("bert", NextSentencePrediction()),
    "token-classification": ("bert", TokenClassification(labels=("O", "B-x", "I-x"))),
    "crf": ("bert", TokenClassification(labels=("O", "B-x", "I-x"), crf=True)),
    "question-answering": ("bert", QuestionAnswering()),
    "replaced-token-detection": ("electra", ReplacedTokenDetection()),
    "sentence-embedding": ("bert", SentenceEmbedding(dimensions=32)),
}

TEXTS = ["hello my card", "see you later", "what is the weather", "my book is lost", "good morning bank", "why not"]

ROWS: dict[str, list[dict[str, Any]]] = {
    "single_label": [{"text": text, "label": LABELS[place % 3]} for place, text in enumerate(TEXTS)],
    "multi_label": [{"text": text, "labels": [LABELS[place % 3]]} for place, text in enumerate(TEXTS)],
    "regression": [{"text": text, "score": place} for place, text in enumerate(TEXTS)],
    "next-sentence-prediction": [
        {"text": text, "text_pair": "the sun", "label": ("is_next", "not_next")[place % 2]}
        for place, text in enumerate(TEXTS)
    ],
    "token-classification": [
        {"tokens": text.split(), "tags": ["B-x", *["I-x"] * (len(text.split()) - 2), "O"]} for text in TEXTS
    ],
    "question-answering": [
        {"question": "what", "context": text, "answers": [{"text": text.split()[0], "answer_start": 0}]}
        for text in TEXTS
    ],
    "replaced-token-detection": [
        {"tokens": text.split(), "tags": ["replaced", *["original"] * (len(text.split()) - 1)]} for text in TEXTS
    ],
    "sentence-embedding": [
        {"text": text, "text_pair": other, "score": place}
        for place, (text, other) in enumerate(zip(TEXTS, reversed(TEXTS), strict=True))
    ],
}
ROWS["crf"] = ROWS["token-classification"]


def write(path: Path, rows: list[dict[str, Any]], times: int = 1) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * times), encoding="utf-8")
    return path


def checkpoint(folder: Path, vocab: Path, config: EncoderConfig, task: Task) -> Path:
    """A checkpoint whose answers differ clearly from text to text."""
    torch.manual_seed(3)
    model = TaskModel(config, task)
    randomize(model)
    folder.mkdir()
    save_model(model, folder, tokenizer_from=vocab)
    return folder


@pytest.fixture
def teacher(request: pytest.FixtureRequest, toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path) -> Path:
    """A teacher of four layers for the `TEACHERS` entry that the test names."""
    family, task = TEACHERS[request.param]
    more = {"embedding_size": None} if family == "bert" else {"embedding_size": 16}
    config = replace(toy_config, family=family, num_layers=4, initializer_range=0.1, **more)
    return checkpoint(tmp_path / "teacher", toy_vocab, config, task)


SETTINGS = TrainSettings(epochs=6, batch_size=8, lr=3e-3, precision="fp32")


def test_layers_are_spread_over_the_teacher() -> None:
    assert evenly_spaced_layers(12, 6) == [0, 2, 4, 7, 9, 11]  # those that DistilBERT's authors took
    assert (evenly_spaced_layers(6, 3), evenly_spaced_layers(4, 1), evenly_spaced_layers(3, 3)) == (
        [0, 2, 5],
        [0],
        [0, 1, 2],
    )
    for number in (0, 7):
        with pytest.raises(
            TrainingError, match=f"a student of 1 to 6 layers, as many as its teacher has, found {number}"
        ):
            evenly_spaced_layers(6, number)
    assert matched_layers(6, 3) == [1, 3, 5]
    assert matched_layers(4, 3) == [1, 2, 3]
    assert matched_layers(2, 4) == [0, 0, 1, 1]


@pytest.mark.parametrize("groups", [None, 1, 2])
def test_a_student_has_the_teachers_layers(toy_config: EncoderConfig, groups: int | None) -> None:
    family = "bert" if groups is None else "albert"
    embedding = None if groups is None else 16
    config = replace(toy_config, family=family, num_layers=4, num_layer_groups=groups, embedding_size=embedding)
    model = TaskModel(config, MASK).eval()
    randomize(model)
    ids, mask, segments = inputs(2, "random", config.vocab_size)
    with torch.no_grad():
        whole = student_from_layers(model, 4)
        assert torch.equal(whole(ids, mask, segments), model(ids, mask, segments))
        student = student_from_layers(model, 2)
        model.encoder.order = [model.encoder.order[0], model.encoder.order[3]]  # the first and the last
        assert torch.equal(student(ids, mask, segments), model(ids, mask, segments))
    assert student.encoder.order == ([0, 0] if groups == 1 else [0, 1])
    student.encoder.layers[0].attention.query.weight.data.zero_()
    assert model.encoder.layers[0].attention.query.weight.abs().sum() > 0  # copies


def test_what_layers_compute_is_what_transformers_shows() -> None:
    reference = transformers.BertModel(transformers.BertConfig(**toy_config(), attn_implementation="eager")).eval()
    randomize(reference)
    values = {**reference.config.to_dict(), "model_type": "bert"}
    model = TaskModel(FAMILIES["bert"].parse_config(values, "here"), TextClassification(labels=LABELS)).eval()
    family = FAMILIES["bert"]
    for name, parameter in model.encoder.named_parameters():
        key = family.checkpoint_key(f"encoder.{name}", "text-classification").removeprefix("bert.")
        parameter.data.copy_(reference.state_dict()[key])
    trace = LayerTrace(model.encoder, model.config.num_heads)
    ids, mask, segments = inputs(3, "random")
    with torch.no_grad():
        expected = reference(ids, mask, segments, output_hidden_states=True, output_attentions=True)
        for _ in range(2):  # a second pass forgets the first
            model(ids, mask, segments)
    assert len(trace.hidden) == model.config.num_layers
    for found, layer in zip(trace.hidden, expected.hidden_states[1:], strict=True):
        assert float((found - layer).abs().max()) < 1e-5
    attention = trace.attention().masked_fill(~mask.bool()[:, None, None, :], -1e4).softmax(-1)
    assert float((attention - expected.attentions[-1]).abs().max()) < 1e-6


def test_distributions_are_compared_at_a_temperature() -> None:
    student, teacher = torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, -1.0]])
    p, q = 1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(1.0))  # of the first, at temperature 2
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert float(categorical(student, teacher, 2.0)) == pytest.approx(4 * divergence, abs=1e-6)
    # A decision with the logit x is a distribution of two classes with the logits x and 0.
    pairs = [torch.stack([each.flatten(), torch.zeros(2)], dim=-1) for each in (student, teacher)]
    assert float(binary(student, teacher, 3.0)) == pytest.approx(float(categorical(*pairs, 3.0)), abs=1e-5)


def test_attention_of_padding_does_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 2, 4, 5, 5, generator=generator)
    tokens = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    found = attention_distance(student, teacher, tokens)
    student[0, :, 3:], student[0, :, :, 3:] = 9.0, -7.0
    assert float(attention_distance(student, teacher, tokens)) == pytest.approx(float(found), rel=1e-6)
    assert float(attention_distance(teacher, teacher, tokens)) == pytest.approx(0.0, abs=1e-6)
    assert float(found) > 0.1


@pytest.mark.parametrize("kind", TEACHERS)
def test_answers_are_as_far_apart_as_they_differ(kind: str) -> None:
    task = TEACHERS[kind][1]
    shape = {
        "token-classification": (2, 5, 3), "crf": (2, 5, 3), "question-answering": (2, 5, 2),
        "replaced-token-detection": (2, 5), "sentence-embedding": (2, 8), "regression": (2, 1),
        "next-sentence-prediction": (2, 2),
    }.get(kind, (2, 3))  # fmt: skip
    student, teacher = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])

    def distance(one: Tensor) -> float:
        return float(soft_loss(task, one, teacher, mask, torch.zeros(2), 2.0))

    assert distance(teacher) == pytest.approx(0.0, abs=1e-6)
    assert distance(student) > 2 * distance((student + teacher) / 2) > 0
    if len(shape) > 1 and shape[1] == 5:
        padding = student.clone()
        padding[0, 3:] = 50.0
        assert distance(padding) == pytest.approx(distance(student), rel=1e-5)


def test_every_task_is_distilled_or_says_why_not() -> None:
    assert set(SOFT_LOSSES) == set(TASKS) - {"fill-mask"}


@pytest.mark.parametrize("teacher", TEACHERS, indirect=True)
def test_a_student_answers_as_its_teacher(teacher: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Without labels: the training file's are left out wherever the task allows it."""
    kind = request.node.callspec.params["teacher"]
    unlabelled = [
        {k: v for k, v in row.items() if k in ("text", "text_pair", "tokens", "question", "context")}
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
def test_labels_count_as_much_as_they_are_given_weight(teacher: Path, tmp_path: Path) -> None:
    """A teacher that knows nothing of these labels is overruled by them."""
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


@pytest.fixture
def stranger(toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path) -> Path:
    """A checkpoint of another family, width and vocabulary."""
    words = (toy_vocab / "vocab.txt").read_text(encoding="utf-8").split("\n")
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab" / "vocab.txt").write_text("\n".join([*words[:5], *reversed(words[5:-1])]) + "\n")
    config = replace(toy_config, family="distilbert", hidden_size=16, num_heads=2, type_vocab_size=0)
    return checkpoint(tmp_path / "stranger", tmp_path / "vocab", config, MASK)


@pytest.mark.parametrize("teacher", ["single_label"], indirect=True)
def test_a_student_may_read_other_tokens(teacher: Path, stranger: Path, tmp_path: Path) -> None:
    train, dev = (
        write(tmp_path / "train.jsonl", ROWS["single_label"], 6),
        write(tmp_path / "dev.jsonl", ROWS["single_label"]),
    )
    report = distill(
        teacher, str(stranger), train, dev, tmp_path / "out", SETTINGS, DistillationSettings(hard_weight=0)
    )
    assert report["epochs"][-1]["train_loss"] < 0.6 * report["epochs"][0]["train_loss"]
    assert open_checkpoint(tmp_path / "out").family.name == "distilbert"
    for name in ("hidden_weight", "attention_weight"):
        with pytest.raises(TrainingError, match=f"{name} needs a student with the tokenizer of its teacher"):
            distill(teacher, str(stranger), train, dev, tmp_path / "no", SETTINGS, DistillationSettings(**{name: 1.0}))


@pytest.mark.parametrize("teacher", ["token-classification"], indirect=True)
def test_tokens_are_compared_one_by_one(teacher: Path, stranger: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", ROWS["token-classification"])
    with pytest.raises(TrainingError, match="token-classification needs a student with the tokenizer of its teacher"):
        distill(teacher, str(stranger), file, file, tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("teacher", ["single_label"], indirect=True)
def test_a_narrower_student_is_projected_to_the_teachers_width(
    teacher: Path, toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path
) -> None:
    narrow = checkpoint(tmp_path / "narrow", toy_vocab, replace(toy_config, hidden_size=16), MASK)
    train, dev = (
        write(tmp_path / "train.jsonl", ROWS["single_label"], 6),
        write(tmp_path / "dev.jsonl", ROWS["single_label"]),
    )
    weights = DistillationSettings(soft_weight=0.0, hard_weight=0.0, hidden_weight=1.0)
    report = distill(teacher, str(narrow), train, dev, tmp_path / "out", SETTINGS, weights)
    assert report["epochs"][-1]["train_loss"] < 0.7 * report["epochs"][0]["train_loss"]
    load_model(open_checkpoint(tmp_path / "out"), TEACHERS["single_label"][1])  # nothing of the projection is left


@pytest.mark.parametrize("teacher", ["single_label"], indirect=True)
def test_what_cannot_be_distilled(teacher: Path, toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", ROWS["single_label"])
    arguments: list[Any] = [file, file, tmp_path / "out", SETTINGS]
    with pytest.raises(TrainingError, match=r"a number of the teacher's layers, a size of bert .*mini.* found 'huge'"):
        distill(teacher, "huge", *arguments)
    with pytest.raises(TrainingError, match="1 to 4 layers, as many as its teacher has, found 5"):
        distill(teacher, "5", *arguments)
    with pytest.raises(TrainingError, match="need labels that are learnt from"):
        smooth = replace(SETTINGS, label_smoothing=0.1)
        distill(teacher, "2", file, file, tmp_path / "out", smooth, DistillationSettings(hard_weight=0))
    masks = checkpoint(tmp_path / "masks", toy_vocab, toy_config, MASK)
    with pytest.raises(TrainingError, match="a teacher of fill-mask is distilled from a corpus: give --corpus"):
        distill(masks, "1", *arguments)
    other = write(tmp_path / "other.jsonl", [*ROWS["single_label"], {"text": "hi", "label": "thanks"}])
    with pytest.raises(DataError, match=r"other\.jsonl:7: .*'thanks'"):
        distill(teacher, "2", other, file, tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()
    problems = r"soft_weight must not be negative, found -1; temperature must be positive, found 0"
    with pytest.raises(TrainingError, match=problems):
        DistillationSettings(soft_weight=-1, temperature=0)
    with pytest.raises(TrainingError, match="nothing is learnt of a teacher"):
        DistillationSettings(soft_weight=0)


@pytest.fixture
def corpus(tmp_path: Path) -> TextFiles:
    sentences = ["my card is lost", "help me please", "the train was late", "good morning", "see you", "why not"]
    lines = ["\n".join(sentences[place % 6 :] + sentences[: place % 6]) for place in range(30)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(lines), encoding="utf-8")
    return TextFiles([tmp_path / "corpus.txt"])


MASKED = PretrainSettings(
    objective="mlm", steps=40, batch_size=8, lr=3e-3, max_tokens=24, dev_fraction=0.2, eval_every=20, precision="fp32"
)


def test_a_language_model_is_distilled_from_a_corpus(
    toy_vocab: Path, toy_config: EncoderConfig, corpus: TextFiles, tmp_path: Path
) -> None:
    teacher = checkpoint(tmp_path / "teacher", toy_vocab, replace(toy_config, num_layers=4), MASK)
    weights = DistillationSettings(hard_weight=0.0, hidden_weight=1.0, attention_weight=1.0)  # it fills masks at random
    report = distill_language_model(teacher, "2", corpus, tmp_path / "out", MASKED, weights, cache=tmp_path / "cache")
    first, last = report["measured"][0], report["measured"][-1]
    for name in ("soft_loss", "hidden_loss"):
        assert last[name] < first[name], name
    assert 0 < last["attention_loss"] < 0.1
    assert report["start"]["teacher"]["sha256"] == open_checkpoint(teacher).sha256()
    reference, loading = transformers.BertForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert reference.config.num_hidden_layers == 2
    assert not any(loading.values())
    with pytest.raises(TrainingError, match="distilled with the objective mlm, found mlm\\+nsp"):
        distill_language_model(teacher, "2", corpus, tmp_path / "no", replace(MASKED, objective="mlm+nsp"))


def test_a_copy_of_the_teacher_has_nothing_to_learn_from_it(toy_config: EncoderConfig) -> None:
    teacher = TaskModel(toy_config, MASK)
    randomize(teacher)
    model = DistilledLanguageModel(student_from_layers(teacher, toy_config.num_layers), teacher, DistillationSettings(
        soft_weight=1.0, hidden_weight=1.0, attention_weight=1.0
    )).eval()  # fmt: skip
    ids, mask, segments = inputs(3, "random", toy_config.vocab_size)
    labels = torch.where(torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.3, ids, -100)
    with torch.no_grad():
        measured = model.measure(ids, mask, segments, labels, torch.zeros(3, dtype=torch.int64))
    for name in ("soft_loss", "hidden_loss", "attention_loss"):
        assert float(measured[name].total / measured[name].number) == pytest.approx(0.0, abs=1e-5)
    assert float(model.loss(measured)) == pytest.approx(
        float(measured["mlm_loss"].total / measured["mlm_loss"].number), abs=1e-4
    )
    owned = {name for name, _ in model.named_parameters()}
    assert owned == {f"model.{name}" for name, _ in model.model.named_parameters()}  # the teacher is not trained


@pytest.mark.parametrize("teacher", ["crf"], indirect=True)
def test_without_labels_a_chain_is_the_teachers(
    teacher: Path, toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path
) -> None:
    student = checkpoint(tmp_path / "plain", toy_vocab, toy_config, MASK)
    file = write(tmp_path / "rows.jsonl", ROWS["crf"])
    settings = replace(SETTINGS, epochs=1)
    distill(teacher, str(student), file, file, tmp_path / "out", settings, DistillationSettings(hard_weight=0))
    chains = [read_weights(folder)["crf.transitions"] for folder in (teacher, tmp_path / "out")]
    assert torch.equal(*chains)
    assert chains[0].abs().sum() > 0


@pytest.mark.parametrize("teacher", ["question-answering"], indirect=True)
def test_a_teacher_reads_the_windows_of_its_student(
    teacher: Path, toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path
) -> None:
    """The teacher's own limit is shorter: it would cut the text into more windows than the student reads."""
    settings = json.loads((teacher / "tokenizer_config.json").read_text())
    (teacher / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 16}))
    student = checkpoint(tmp_path / "plain", toy_vocab, toy_config, MASK)
    long = {"question": "what", "context": " ".join(TEXTS), "answers": [{"text": "hello", "answer_start": 0}]}
    file = write(tmp_path / "rows.jsonl", [long, *ROWS["question-answering"]])
    asked: list[int] = []
    answers = Teacher.answers

    def counted(self: Teacher, examples: Any, *given: Any, **options: Any) -> list[Tensor]:
        found = answers(self, examples, *given, **options)
        asked.extend(len(each) for each in found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Teacher, "answers", counted)
        distill(teacher, str(student), file, file, tmp_path / "out", replace(SETTINGS, epochs=1))
    assert len(asked) == 7
    assert max(asked) > 16
    small = checkpoint(tmp_path / "small", toy_vocab, replace(toy_config, max_positions=128), MASK)
    with pytest.raises(
        TrainingError, match="the student reads up to 128 tokens and its teacher 64; give --max-tokens 64"
    ):
        distill(teacher, str(small), file, file, tmp_path / "no", SETTINGS)


def test_a_copy_of_a_student_shares_the_teacher(toy_config: EncoderConfig) -> None:
    """Where processes share a student's parameters, the first keeps a copy to gather them in."""
    teacher = TaskModel(toy_config, MASK)
    settings = DistillationSettings(hidden_weight=1.0, attention_weight=1.0)
    model = DistilledLanguageModel(student_from_layers(teacher, 1), teacher, settings)
    ids, mask, segments = inputs(2, "full", toy_config.vocab_size)
    model.measure(ids, mask, segments, ids, ids[:, 0])
    copied = copy.deepcopy(model)
    assert copied.teacher is model.teacher
    assert copied.model is not model.model
