"""Every task learns from a file of its kind, and what it learnt is in the checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bert_export import export
from bert_models import TaskModel, TrainingError, load_model, open_checkpoint
from bert_models.training import TrainSettings, fine_tune
from bert_models.training.data import ExampleDataset
from bert_models.training.objectives import build_objective, stack_targets
from bert_models.training.optimizer import parameter_groups
from bert_models.training.similarity import similarity_examples, similarity_loss
from bert_runtime import load
from bert_runtime.errors import DataError
from bert_runtime.evaluation import evaluate
from bert_runtime.metrics import entity_spans
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import (
    FillMask,
    QuestionAnswering,
    ReplacedTokenDetection,
    SentenceEmbedding,
    Task,
    TokenClassification,
)
from bert_runtime.tasks.tokens import join_words
from bert_runtime.tokenization import TextTokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

FILES: dict[str, list[dict[str, Any]]] = {
    "token-classification": [
        {"tokens": ["my", "card", "is", "lost", "at", "bank"], "tags": ["O", "B-item", "O", "O", "O", "B-place"]},
        {"tokens": ["the", "bank", "is", "closed"], "tags": ["O", "B-place", "O", "O"]},
        {"tokens": ["help", "my", "train", "book", "please"], "tags": ["O", "O", "B-item", "I-item", "O"]},
    ],
    "question-answering": [
        {"question": "where", "context": "my card is at the bank.", "answers": [{"text": "bank", "answer_start": 18}]},
        {"question": "what is lost", "context": "the card is lost.", "answers": [{"text": "card", "answer_start": 4}]},
        {"question": "why is the sun late", "context": "my book is great.", "answers": []},
    ],
    "fill-mask": [
        {"text": "my card is [MASK] at the bank", "label": "lost"},
        {"text": "[MASK] is the [MASK]", "labels": ["where", "train"]},
        {"text": "good [MASK]", "label": "morning"},
    ],
    "next-sentence-prediction": [
        {"text": "my card", "text_pair": "is lost", "label": "is_next"},
        {"text": "the weather", "text_pair": "is great", "label": "is_next"},
        {"text": "hello", "text_pair": "refund", "label": "not_next"},
    ],
    "sentence-embedding": [
        {"text": "my card", "text_pair": "a card", "score": 5},
        {"text": "my card", "text_pair": "the rain", "score": 0},
        {"text": "good morning", "text_pair": "hello", "score": 4},
    ],
}  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]], times: int = 1) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * times), encoding="utf-8")
    return path


@pytest.mark.parametrize("task", FILES)
def test_every_task_learns(task: str, classifier_checkpoint: Path, tmp_path: Path) -> None:
    train, dev = write(tmp_path / "train.jsonl", FILES[task], 8), write(tmp_path / "dev.jsonl", FILES[task])
    settings = TrainSettings(epochs=30 if task == "fill-mask" else 12, batch_size=8, lr=2e-3, precision="fp32")
    report = fine_tune(task, classifier_checkpoint, train, dev, tmp_path / "out", settings)
    assert report["best"][report["metric"]] >= 0.99
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.task().to_dict() == report["task"]
    assert load_model(checkpoint, checkpoint.task()).task.name == task


def test_a_linear_chain_is_trained_and_saved(classifier_checkpoint: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", FILES["token-classification"], 8)
    settings = TrainSettings(epochs=3, batch_size=8, lr=2e-3, precision="fp32")
    options = {"crf": True, "bio": True, "aggregation": "first"}
    fine_tune(
        "token-classification", classifier_checkpoint, file, file, tmp_path / "out", settings, task_settings=options
    )
    checkpoint = open_checkpoint(tmp_path / "out")
    task = checkpoint.task()
    assert isinstance(task, TokenClassification)
    assert (task.crf, task.bio, task.aggregation, task.transitions) == (True, True, "first", ())
    decoded = load_model(checkpoint, task).runtime_task()
    assert isinstance(decoded, TokenClassification)
    transitions = np.array(decoded.transitions)
    assert transitions.shape == (len(task.labels) + 2, len(task.labels))
    begin, inside = task.labels.index("B-item"), task.labels.index("I-item")
    assert transitions[begin, inside] > transitions[inside, inside]  # the only place where I-item was seen


def test_answers_are_what_was_measured(classifier_checkpoint: Path, tmp_path: Path) -> None:
    """Words are decoded as they are trained and scored: by their first token, as sequences that BIO allows."""
    file = write(tmp_path / "train.jsonl", FILES["token-classification"], 8)
    settings = TrainSettings(epochs=4, batch_size=8, lr=1e-3, precision="fp32")
    fine_tune("token-classification", classifier_checkpoint, file, file, tmp_path / "out", settings)
    task = open_checkpoint(tmp_path / "out").task()
    assert isinstance(task, TokenClassification)
    assert (task.aggregation, task.bio, task.crf) == ("first", True, False)
    export(tmp_path / "out", tmp_path / "bundle", precisions=["fp32"])
    model = load(tmp_path / "bundle")
    records = read_records(file)
    found = [{(e.label, e.start, e.end) for e in model(join_words(each.tokens())[0]).entities} for each in records]
    gold = []
    for each in records:
        _, spans = join_words(each.tokens())
        entities = entity_spans(each.tags())
        gold.append({(kind, int(spans[first, 0]), int(spans[after - 1, 1])) for kind, first, after in entities})
    hits, total = sum(len(x & y) for x, y in zip(found, gold, strict=True)), sum(len(x) for x in (*found, *gold))
    assert evaluate(model, records)["f1"] == pytest.approx(2 * hits / total)
    assert 0 < 2 * hits / total < 1


def test_attention_pooling_is_saved_and_read(embedding_checkpoint: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", FILES["sentence-embedding"], 8)
    settings = TrainSettings(epochs=2, batch_size=8, lr=2e-3, precision="fp32")
    arguments = ("sentence-embedding", embedding_checkpoint, file, file, tmp_path / "out", settings)
    fine_tune(*arguments, task_settings={"pooling": "attention"})
    checkpoint = open_checkpoint(tmp_path / "out")
    task = checkpoint.task()
    assert isinstance(task, SentenceEmbedding)
    assert task.pooling == "attention"
    score = dict(load_model(checkpoint, task).named_parameters())["head.pooling.score.weight"]
    again = dict(load_model(checkpoint, task).named_parameters())["head.pooling.score.weight"]
    assert torch.equal(score, again)


def test_thresholds_are_those_of_the_dev_file(classifier_checkpoint: Path, tmp_path: Path) -> None:
    rows = [
        {"text": "my card", "labels": ["a", "b"]},
        {"text": "good rain", "labels": ["b"]},
        {"text": "hi", "labels": []},
    ]
    file = write(tmp_path / "train.jsonl", rows, 8)
    arguments = ("text-classification", classifier_checkpoint, file, file, tmp_path / "out")
    settings = TrainSettings(epochs=1, batch_size=8, lr=1e-4, precision="fp32")
    report = fine_tune(*arguments, settings, task_settings={"problem_type": "multi_label"})
    assert report["task"]["threshold"] == report["best"]["best_threshold"]
    assert report["best"]["micro_f1"] == pytest.approx(report["best"]["best_micro_f1"])
    assert open_checkpoint(tmp_path / "out").task().to_dict() == report["task"]


def test_a_linear_chain_has_a_learning_rate_of_its_own(toy_config: Any) -> None:
    model = TaskModel(toy_config, TokenClassification(labels=("O", "B-x"), crf=True))
    *_, chain = parameter_groups(model, 0.01)
    assert [p.shape for p in chain["params"]] == [(4, 2)]
    assert chain["weight_decay"] == 0
    assert chain["lr"] > 1e-3
    grouped = [p for group in parameter_groups(model, 0.01) for p in group["params"]]
    assert len(grouped) == len(list(model.parameters())) == len({id(p) for p in grouped})


@pytest.fixture
def tokenizer_for(classifier_checkpoint: Path) -> Callable[[Task, int], TextTokenizer]:
    return lambda task, length: open_checkpoint(classifier_checkpoint).text_tokenizer(length, task.windows)


def first_target(task: Task, row: dict[str, Any], tokenizer: TextTokenizer) -> list[tuple[list[str], list[Any]]]:
    """Tokens and target of every window of one example."""
    example = task.example(Record(row, Path("x.jsonl"), 1))
    (windows,) = tokenizer.encode(example.inputs)
    objective = build_objective(task)
    return [(each.tokens, objective.target(example, each, tokenizer).tolist()) for each in windows]


def test_labels_sit_on_the_first_token_of_a_word(tokenizer_for: Callable[[Task, int], TextTokenizer]) -> None:
    task = TokenClassification(labels=("O", "B-x"))
    row = {"tokens": ["my", "cardz", "bank"], "tags": ["O", "B-x", "O"]}
    ((tokens, target),) = first_target(task, row, tokenizer_for(task, 64))
    assert tokens == ["[CLS]", "my", "card", "##z", "bank", "[SEP]"]
    assert target == [-100, 0, 1, -100, 0, -100]


def test_every_label_is_in_some_window_and_none_on_a_word_that_began_before(
    tokenizer_for: Callable[[Task, int], TextTokenizer],
) -> None:
    task = TokenClassification(labels=("O", "B-x"))
    row = {"tokens": ["zebra", "card"] * 12, "tags": ["B-x", "O"] * 12}
    windows = first_target(task, row, tokenizer_for(task, 16))
    assert len(windows) > 3
    for tokens, target in windows:
        labelled = {token: label for token, label in zip(tokens, target, strict=True) if label != -100}
        assert labelled.keys() <= {"z", "card"}
        assert all(label == (token == "z") for token, label in labelled.items())


def test_every_token_of_a_replaced_word_is_replaced(tokenizer_for: Callable[[Task, int], TextTokenizer]) -> None:
    task = ReplacedTokenDetection()
    row = {"tokens": ["my", "cardz", "bank"], "tags": ["original", "replaced", "original"]}
    ((_, target),) = first_target(task, row, tokenizer_for(task, 64))
    assert target == [-100, 0, 1, 1, 0, -100]


def test_an_answer_is_in_the_windows_that_hold_it(tokenizer_for: Callable[[Task, int], TextTokenizer]) -> None:
    task = QuestionAnswering()
    context = "hello my card is late. " * 8 + "see the bank now"
    row = {
        "question": "where",
        "context": context,
        "answers": [{"text": "the bank", "answer_start": context.index("the bank")}],
    }
    windows = first_target(task, row, tokenizer_for(task, 24))
    assert len(windows) > 2
    for tokens, (start, end) in windows:
        assert tokens[start : end + 1] == (["the", "bank"] if "bank" in tokens else ["[CLS]"])


def test_masks_are_compared_with_their_words(tokenizer_for: Callable[[Task, int], TextTokenizer]) -> None:
    task = FillMask(mask_token="[MASK]", mask_token_id=4)
    tokenizer = tokenizer_for(task, 64)
    ((tokens, target),) = first_target(task, {"text": "[MASK] is [MASK]", "labels": ["card", "lost"]}, tokenizer)
    assert tokens == ["[CLS]", "[MASK]", "is", "[MASK]", "[SEP]"]
    assert target == [-100, *tokenizer.token_ids("card"), -100, *tokenizer.token_ids("lost"), -100]


def test_targets_of_different_lengths_are_filled_up() -> None:
    assert stack_targets([np.array([1, 2, 3]), np.array([4])]).tolist() == [[1, 2, 3], [4, -100, -100]]
    assert stack_targets([np.array(2), np.array(1)]).tolist() == [2, 1]


def similar(rows: list[dict[str, Any]]) -> list[Any]:
    records = [Record(row, Path("x.jsonl"), number) for number, row in enumerate(rows, start=1)]
    return [example.target for example in similarity_examples(SentenceEmbedding(dimensions=2), records)]


def test_scores_of_pairs_are_brought_to_one() -> None:
    pair = {"text": "a", "text_pair": "b"}
    assert similar([{**pair, "score": 5}, {**pair, "score": 2.5}]) == [1.0, 0.5]
    assert similar([{**pair, "score": 0.2}, {**pair, "score": -0.4}]) == [0.2, -0.4]
    assert np.isnan(similar([pair, pair])).all()


@pytest.mark.parametrize(
    ("scores", "message"),
    [((1.0, None), r"x\.jsonl:2: expected a score as in x\.jsonl:1"), ((0, 0), "expected scores that differ")],
)
def test_scores_that_cannot_be_matched(scores: tuple[Any, ...], message: str) -> None:
    rows = [{"text": "a", "text_pair": "b"} | ({} if score is None else {"score": score}) for score in scores]
    with pytest.raises(DataError, match=message):
        similar(rows)


def test_pairs_without_scores_find_each_other() -> None:
    vectors: Tensor = torch.eye(4)[[0, 0, 1, 1, 2, 2]]
    nan = torch.full((3,), float("nan"))
    assert similarity_loss(vectors, nan) < 1e-6
    assert similarity_loss(vectors[[0, 2, 3, 5, 4, 1]], nan) > 10


def test_pairs_without_scores_train(embedding_checkpoint: Path, tmp_path: Path) -> None:
    words = ("card", "rain", "bank", "train", "book", "film", "parcel", "refund")
    rows = [{"text": f"my {word}", "text_pair": f"the {word} is {word}"} for word in words]
    train = write(tmp_path / "train.jsonl", rows)
    pairs = [(x, y) for x in words for y in words]
    scored = [{"text": f"my {x}", "text_pair": f"the {y} is {y}", "score": float(x == y)} for x, y in pairs]
    dev = write(tmp_path / "dev.jsonl", scored)
    settings = TrainSettings(epochs=20, batch_size=8, lr=5e-4, precision="fp32")
    fine_tune("sentence-embedding", embedding_checkpoint, train, dev, tmp_path / "out", settings)

    def loss_of(folder: Path) -> float:
        checkpoint = open_checkpoint(folder)
        task = checkpoint.task()
        examples = ExampleDataset(task, similarity_examples(task, read_records(train)), checkpoint.text_tokenizer())
        batch = examples.collate(range(len(examples)))
        with torch.no_grad():
            vectors = load_model(checkpoint, task)(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return float(similarity_loss(vectors, batch.targets))

    assert loss_of(tmp_path / "out") < 0.5 * loss_of(embedding_checkpoint)


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        (
            "fill-mask",
            {"text": "my [MASK]", "label": "cardbank"},
            r":1: expected a word that is one token .* 'cardbank'",
        ),
        ("fill-mask", {"text": "my card " * 60 + "[MASK]", "label": "card"}, r":1: expected at least one \[MASK\]"),
        (
            "question-answering",
            {"question": "why " * 60, "context": "my card", "answers": [{"text": "card", "answer_start": 3}]},
            r":1: the first text has 60 tokens; expected at most",
        ),
    ],
)
def test_rows_that_cannot_be_learnt_are_named(
    task: str, row: dict[str, Any], message: str, classifier_checkpoint: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "train.jsonl", [row])
    with pytest.raises(DataError, match=message):
        fine_tune(task, classifier_checkpoint, file, file, tmp_path / "out", TrainSettings())


def test_fewer_dimensions_are_kept_in_the_checkpoint(embedding_checkpoint: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", FILES["sentence-embedding"], 2)
    arguments = ("sentence-embedding", embedding_checkpoint, file, file, tmp_path / "out")
    fine_tune(*arguments, TrainSettings(epochs=1, precision="fp32"), task_settings={"dimensions": 8})
    task = open_checkpoint(tmp_path / "out").task()
    assert isinstance(task, SentenceEmbedding)
    assert task.dimensions == 8


def test_another_pooling_than_the_attention_of_the_base(embedding_checkpoint: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", FILES["sentence-embedding"], 2)
    base = embedding_checkpoint
    for pooling in ("attention", "mean"):
        arguments = (
            "sentence-embedding",
            base,
            file,
            file,
            tmp_path / pooling,
            TrainSettings(epochs=1, precision="fp32"),
        )
        fine_tune(*arguments, task_settings={"pooling": pooling})
        base = tmp_path / pooling
    task = open_checkpoint(base).task()
    assert isinstance(task, SentenceEmbedding)
    assert task.pooling == "mean"


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("token-classification", {"problem_type": "regression"}, "token-classification has no setting problem_type"),
        ("token-classification", {"labels": ("a",)}, "has no setting labels"),
        ("token-classification", {"aggregation": "median"}, "expected an aggregation of none, simple"),
        ("sentence-embedding", {"pooling": "median"}, "expected a pooling of mean"),
    ],
)
def test_settings_that_a_task_does_not_have(
    task: str, settings: dict[str, Any], message: str, embedding_checkpoint: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "train.jsonl", FILES[task])
    with pytest.raises(TrainingError, match=message):
        fine_tune(task, embedding_checkpoint, file, file, tmp_path / "out", TrainSettings(), task_settings=settings)
    assert not (tmp_path / "out").exists()


def test_bio_needs_bio_labels(classifier_checkpoint: Path, tmp_path: Path) -> None:
    rows = [{"tokens": ["my", "card"], "tags": ["DET", "NOUN"]}]
    file = write(tmp_path / "train.jsonl", rows)
    with pytest.raises(TrainingError, match=r"bio needs labels O, B-… and I-…, found DET, NOUN"):
        fine_tune(
            "token-classification", classifier_checkpoint, file, file, tmp_path / "out", TrainSettings(),
            task_settings={"bio": True},
        )  # fmt: skip


def test_labels_of_tags_are_in_a_readable_order(classifier_checkpoint: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", FILES["token-classification"], 2)
    settings = TrainSettings(epochs=1, precision="fp32")
    report = fine_tune("token-classification", classifier_checkpoint, file, file, tmp_path / "out", settings)
    assert report["task"]["labels"] == ("O", "B-item", "I-item", "B-place")
