"""question-answering: answers against every span of every window, and SQuAD's own answers as tokens and back."""

import gzip
import json
import random
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Encoding, Tokenizer

from bert_runtime import InputError, Model
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import Answers, Example, Outputs, QuestionAnswering, TextInput
from bert_runtime.tasks.tokens import answer_token_span

from ..task_models import Dice, check_agreement, dice, exported, reference, text_of, with_session, wordpiece

SPANS = QuestionAnswering()
OR_NONE = QuestionAnswering(no_answer=True)

WORDS = ("the", "train", "zebra", "bank", "of", "Köln", "東京", "is", "😀", "late", ",", "xyz", "(rain)", "e\u0301t")


def words_of(num_words: int, seed: int) -> str:
    generator = random.Random(f"{num_words} {seed}")
    return " ".join(generator.choice(WORDS) for _ in range(num_words))


class Span(NamedTuple):
    """A candidate found by hand."""

    score: float
    start: int
    end: int
    text: str


def every_span(outputs: Outputs, task: QuestionAnswering) -> list[Span]:
    """All candidates, best first: each start in the window with most tokens on either side, equal windows the later."""
    context = outputs.input.text_pair or ""
    spans, windows = [], []
    for encoding, row in zip(outputs.encodings, outputs.arrays, strict=True):
        places = [i for i, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
        first = token_numbers(outputs)[id(encoding)]
        windows.append((encoding, row.astype(np.float64), places, first))
    for number, (encoding, row, places, first) in enumerate(windows):
        for i, place in enumerate(places):
            margins = [
                (min(first + i - other, other + len(inside) - 1 - first - i), rank)
                for rank, (_, _, inside, other) in enumerate(windows)
                if other <= first + i < other + len(inside)
            ]
            if max(margins)[1] != number:
                continue
            for end in places[i : i + task.max_answer_tokens]:
                start, after = encoding.offsets[place][0], encoding.offsets[end][1]
                spans.append(Span(row[place, 0] + row[end, 1], start, after, context[start:after]))
    return sorted(spans, key=lambda span: -span.score)


def token_numbers(outputs: Outputs) -> dict[int, int]:
    """For each window, the number in the context of its first token."""
    numbers, first = {}, 0
    shared = len(outputs.encodings[0]) // 4
    for encoding in outputs.encodings:
        numbers[id(encoding)] = first
        first += encoding.sequence_ids.count(1) - shared
    return numbers


def unique(spans: Sequence[Span], count: int) -> list[Span]:
    """The best spans, each text once."""
    found: dict[str, Span] = {}
    for span in spans:
        found.setdefault(span.text, span)
    return list(found.values())[:count]


def check(outputs: Outputs, task: QuestionAnswering) -> None:
    """Compares all answers that a task can give with those found by hand."""
    everything = replace(task, top_k=task.n_best)
    answers = everything.decode(outputs)
    assert isinstance(answers, Answers)
    best = unique(every_span(outputs, task), task.n_best)
    null = min(float(row[0].sum()) for row in outputs.arrays)
    candidates = [*best, Span(null, 0, 0, "")] if task.no_answer else best
    weights = np.exp([span.score - candidates[0].score for span in candidates])
    chances = dict(zip(candidates, weights / weights.sum(), strict=True))
    if task.no_answer and null - best[0].score <= task.no_answer_threshold:
        order = [candidates[0], *sorted(candidates[1:], key=lambda span: -span.score)]
    elif task.no_answer:
        order = [candidates[-1], *best]
    else:
        order = best
    expected = order[: task.n_best]
    assert [(each.answer, each.start, each.end) for each in answers.answers] == [
        (span.text, span.start, span.end) for span in expected
    ]
    assert [each.score for each in answers.answers] == pytest.approx([chances[span] for span in expected], abs=1e-5)
    assert answers.no_answer_score == pytest.approx(null - best[0].score, abs=1e-4)


@pytest.mark.parametrize("no_answer", [False, True])
@pytest.mark.parametrize("n_best", [1, 4, 20])
@pytest.mark.parametrize("max_answer_tokens", [1, 3, 30, 1000])
def test_answers_are_the_best_of_every_span(
    max_answer_tokens: int, n_best: int, no_answer: bool, toy_vocab: Path
) -> None:
    task = QuestionAnswering(no_answer=no_answer, max_answer_tokens=max_answer_tokens, n_best=n_best)
    for max_tokens in (20, 41, 64):
        model = dice(task, toy_vocab, max_tokens, 2)
        for num_words in (1, 2, 9, 30, 60):
            (outputs,) = model.outputs([(words_of(3, 1), words_of(num_words, 2))])
            check(outputs, task)


@pytest.mark.parametrize("threshold", [-np.inf, -10.0, -4.0, 0.0, np.inf])
def test_only_the_threshold_decides_between_the_best_span_and_none(threshold: float, toy_vocab: Path) -> None:
    model = dice(OR_NONE, toy_vocab, 30, 2).with_options(no_answer_threshold=threshold)
    decisions = set()
    for seed in range(30):
        (outputs,) = model.outputs([(words_of(2, seed), words_of(5, seed))])
        check(outputs, model.task)
        answers = model.task.decode(outputs)
        assert (answers.answer == "") == (answers.no_answer_score > threshold)
        decisions.add(answers.answer == "")
    assert decisions == ({True} if threshold == -np.inf else {False} if threshold == np.inf else {True, False})


def test_no_answer_is_the_empty_text_at_zero(toy_vocab: Path) -> None:
    model = dice(OR_NONE, toy_vocab, 30, 2).with_options(no_answer_threshold=-np.inf)
    answer = model(question="who", context="the bank")
    assert answer.to_dict() == {"answer": "", "score": answer.score, "start": 0, "end": 0}
    several = model.with_options(top_k=2)(question="who", context="the bank")
    assert several.answers[0] == answer.answers[0]
    assert several.answers[1] == model.with_options(no_answer_threshold=np.inf)(("who", "the bank")).answers[0]


def test_the_same_words_twice_do_not_crowd_out_other_answers(toy_vocab: Path) -> None:
    """Candidates are counted after those of equal text have been merged."""
    task = QuestionAnswering(n_best=3, top_k=3, max_answer_tokens=1)
    tokenizer = wordpiece(toy_vocab)
    best = ("bank", "train", "rain")
    model = with_session(Ranked(*map(tokenizer.token_to_id, best)), task, tokenizer, 64)
    answers = model(question="who", context="late bank bank train bank bank train rain")
    assert tuple(each.answer for each in answers.answers) == best


class Ranked(Dice):
    """Likes some tokens best, in their order, and all others alike."""

    def __init__(self, *tokens: int) -> None:
        super().__init__(2)
        self.tokens = tokens

    def values(self, ids: Sequence[int]) -> Any:
        scores = [10 - self.tokens.index(token) if token in self.tokens else 0 for token in ids]
        return np.array([scores, scores], dtype=np.float32).T


@pytest.mark.parametrize("top_k", [1, 2, 20])
def test_json_is_an_object_or_a_list_of_them(top_k: int, toy_vocab: Path) -> None:
    model = dice(SPANS, toy_vocab, 64, 2)
    context = words_of(20, 0)
    best = model(("who", context))
    found = model.with_options(top_k=top_k)(("who", context))
    keys = ["answer", "score", "start", "end"]
    rows = [found.to_dict()] if top_k == 1 else found.to_dict()
    assert json.loads(json.dumps(rows)) == rows
    assert [list(row) for row in rows] == [keys] * top_k
    assert rows[0] == best.to_dict() == {key: getattr(best, key) for key in keys}
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    assert all(row["answer"] == context[row["start"] : row["end"]] for row in rows)


def test_a_short_context_has_few_answers(toy_vocab: Path) -> None:
    answers = dice(SPANS, toy_vocab, 64, 2).with_options(top_k=20)(("who", "late train"))
    assert {each.answer for each in answers.answers} == {"late", "train", "late train"}
    assert sum(each.score for each in answers.answers) == pytest.approx(1)


@pytest.mark.parametrize("question", ["", "who", "[SEP] who [SEP]"])
@pytest.mark.parametrize("max_tokens", [16, 40])
def test_neither_the_question_nor_special_tokens_answer(question: str, max_tokens: int, toy_vocab: Path) -> None:
    """Even where the model would like them best."""
    model = with_session(OutsideIsBest(), SPANS, wordpiece(toy_vocab), max_tokens)
    context = "late " + "bank " * 40
    assert {model((question, context)).answer for _ in range(2)} <= {"late", *("bank " * n + "bank" for n in range(30))}


class OutsideIsBest(Dice):
    """Scores fall from the first token to the last, and the last is a separator that likes to end answers."""

    def __init__(self) -> None:
        super().__init__(2)

    def values(self, ids: Sequence[int]) -> Any:
        scores = np.linspace(20, 0, len(ids))
        return np.stack([scores, np.where(np.arange(len(ids)) == len(ids) - 1, 50, scores)], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def exported_reader(toy_vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Model]:
    tokenizer = transformers.BertTokenizer(str(toy_vocab / "vocab.txt"))
    theirs = reference("BertForQuestionAnswering", tokenizer, max_position_embeddings=64)
    return theirs, exported(theirs, tokenizer, tmp_path_factory.mktemp("reader"))


def test_a_bundle_gives_the_logits_of_transformers(exported_reader: tuple[Any, Model]) -> None:
    """With the segments of a pair, in every window."""
    theirs, model = exported_reader
    inputs = [(words_of(n % 7, n), words_of(n, 5)) for n in (1, 5, 20, 60, 120)]
    for outputs in model.outputs(inputs):
        check(outputs, model.task)
        for encoding, row in zip(outputs.encodings, outputs.arrays, strict=True):
            ids, segments = torch.tensor([encoding.ids]), torch.tensor([encoding.type_ids])
            with torch.no_grad():
                found = theirs(input_ids=ids, token_type_ids=segments)
            expected = torch.stack([found.start_logits[0], found.end_logits[0]], dim=-1)
            assert row == pytest.approx(expected.numpy(), abs=1e-4)


@pytest.mark.parametrize("max_tokens", [16, 21, 64])
def test_batch_single_and_stream_agree(exported_reader: tuple[Any, Model], max_tokens: int, toy_vocab: Path) -> None:
    """On contexts of every length around windows' boundaries."""
    _, ours = exported_reader
    model = with_session(ours.session, ours.task, wordpiece(toy_vocab), max_tokens).with_options(top_k=5)
    check_agreement(model, [(text_of(i % (max_tokens // 2), 1), text_of(i)) for i in (*range(1, 61), 90, 200)])


def paragraphs(shared_data: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """Contexts of SQuAD 1.1 with their questions."""
    with gzip.open(shared_data / "squad_v1.1" / "dev-articles.json.gz", "rt", encoding="utf-8") as stream:
        articles = json.load(stream)["data"]
    return [(each["context"], each["qas"]) for article in articles for each in article["paragraphs"]]


@cache
def real_tokenizer(vocab: Path, name: str) -> Tokenizer:
    """A Rust tokenizer, which is made once: tests that truncate work on a copy."""
    if name == "roberta-base":
        files = str(vocab / name / "vocab.json"), str(vocab / "gpt2" / "merges.txt")
        return transformers.RobertaTokenizer(*files)._tokenizer
    lower = name.endswith("uncased")
    return transformers.BertTokenizer(str(vocab / name / "vocab.txt"), do_lower_case=lower)._tokenizer


VOCABULARIES = ["bert-base-uncased", "bert-base-cased", "roberta-base"]


@pytest.mark.shared_data
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_real_contexts_give_the_best_of_every_span(vocabulary: str, shared_data: Path) -> None:
    tokenizer = real_tokenizer(shared_data / "vocab", vocabulary)
    for max_tokens, task in ((64, SPANS), (384, replace(OR_NONE, max_answer_tokens=4))):
        model = with_session(Dice(2), task, tokenizer, max_tokens)
        pairs = [(qas[0]["question"], context[:600]) for context, qas in paragraphs(shared_data)[::30]]
        for outputs in model.outputs(pairs):
            check(outputs, task)


STRANGE = "Zoë  fährt   nach 東京 — 😀😀  e\u0301te\u0301\u200b in   Kraków\n\n\t(PL)   ."


@pytest.mark.shared_data
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_answers_are_parts_of_the_context_that_say_something(vocabulary: str, shared_data: Path) -> None:
    """A byte-level vocabulary has tokens that stand for no character; an empty text would say "no answer"."""
    tokenizer = real_tokenizer(shared_data / "vocab", vocabulary)
    model = with_session(Dice(2), replace(SPANS, top_k=20), tokenizer, 64)
    for seed in range(10):
        for each in model((f"who {seed}", STRANGE)).answers:
            assert each.answer == STRANGE[each.start : each.end]
            assert each.answer


class Held(NamedTuple):
    """A window and the characters of each of its tokens, `None` for those that are not the context's."""

    encoding: Encoding
    offsets: list[tuple[int, int] | None]


def held_by(windows: Sequence[Encoding]) -> list[Held]:
    return [
        Held(each, [offset if i == 1 else None for offset, i in zip(each.offsets, each.sequence_ids, strict=True)])
        for each in windows
    ]


def check_answer_tokens(windows: Sequence[Held], tokens: Sequence[Any], start: int, end: int, *, exact: bool) -> int:
    """How many windows hold an answer, after comparing what `answer_token_span` says of each.

    `exact` where no token reaches beyond the answer.
    """
    wanted = [token for token in tokens if token[1] > start and token[0] < end]
    found = 0
    for encoding, offsets in windows:
        first, last = answer_token_span(encoding, start, end)
        if not all(token in offsets for token in wanted):
            assert (first, last) == (0, 0)
            continue
        assert (offsets[first], offsets[last]) == (wanted[0], wanted[-1])
        assert not exact or (wanted[0][0], wanted[-1][1]) == (start, end)
        found += 1
    return found


@pytest.mark.shared_data
@pytest.mark.parametrize("max_tokens", [64, 384])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_word_spans_become_tokens_and_back(vocabulary: str, max_tokens: int, shared_data: Path) -> None:
    tokenizer, generator = real_tokenizer(shared_data / "vocab", vocabulary), random.Random(0)
    model = with_session(Dice(2), SPANS, tokenizer, max_tokens)
    held = 0
    for context, qas in paragraphs(shared_data)[::20]:
        whole = tokenizer.encode(context, add_special_tokens=False).offsets
        windows = held_by(model.tokenizer.encode([TextInput(qas[0]["question"], context)])[0])
        words = [match.span() for match in re.finditer(r"\S+", context)]
        for first in range(0, len(words), 3):
            last = min(len(words) - 1, first + generator.randrange(6))
            held += check_answer_tokens(windows, whole, words[first][0], words[last][1], exact=True)
    assert held > 300


@pytest.mark.shared_data
@pytest.mark.parametrize("max_tokens", [64, 384])
def test_squads_answers_become_tokens_and_back(max_tokens: int, shared_data: Path) -> None:
    tokenizer = real_tokenizer(shared_data / "vocab", "bert-base-uncased")
    model = with_session(Dice(2), SPANS, tokenizer, max_tokens)
    counts: Counter[bool] = Counter()
    for context, qas in paragraphs(shared_data)[::4]:
        whole = tokenizer.encode(context, add_special_tokens=False).offsets
        for each in qas:
            windows = held_by(model.tokenizer.encode([TextInput(each["question"], context)])[0])
            for text, start in {(answer["text"], answer["answer_start"]) for answer in each["answers"]}:
                held = check_answer_tokens(windows, whole, start, start + len(text), exact=False)
                counts[held > 0] += 1
    assert counts[True] > 0.9 * counts.total() > 300


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("late train rain", "train "),
        ("late train rain", " train"),
        ("late train rain", "rai"),
        ("late train\u200b rain", "train\u200b"),
    ],
)
def test_an_answer_may_end_inside_a_token_or_beyond_it(context: str, answer: str, toy_vocab: Path) -> None:
    model = dice(SPANS, toy_vocab, 64, 2)
    start = context.index(answer)
    (outputs,) = model.outputs([("who", context)])
    (encoding,) = outputs.encodings
    first, last = answer_token_span(encoding, start, start + len(answer))
    assert first == last > 0
    assert encoding.tokens[first] in ("train", "late", "rain")


def test_windows_without_the_whole_answer_point_at_the_first_token(toy_vocab: Path) -> None:
    model = dice(SPANS, toy_vocab, 16, 2)
    context = "late bank " * 10 + "train book film " + "rain " * 20
    start, end = context.index("train"), context.index("film") + len("film")
    (outputs,) = model.outputs([("who", context)])
    whole = wordpiece(toy_vocab).encode(context, add_special_tokens=False).offsets
    windows = held_by(outputs.encodings)
    assert 0 < check_answer_tokens(windows, whole, start, end, exact=True) < len(windows)


def squad_normal(text: str) -> list[str]:
    """As evaluate-v2.0.py of SQuAD has it."""
    text = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def squad_scores(found: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1."""

    def f1(answer: str) -> float:
        one, other = squad_normal(found), squad_normal(answer)
        shared = sum((Counter(one) & Counter(other)).values())
        if not one or not other:
            return float(one == other)
        return 2 * shared / (len(one) + len(other))

    gold = list(answers) or [""]
    return float(any(squad_normal(found) == squad_normal(each) for each in gold)), max(map(f1, gold))


def questions(task: QuestionAnswering, model: Model, count: int = 60) -> tuple[list[Outputs], list[Example]]:
    """Questions on random texts; the right answers are parts of the contexts, some what the model says, some none."""
    generator, outputs, examples = random.Random(0), [], []
    for number in range(count):
        context = words_of(12, number)
        value = TextInput(words_of(3, number), context)
        (each,) = model.outputs([value])
        words = context.split()
        first = generator.randrange(len(words))
        texts = [" ".join(words[first : first + generator.randint(1, 4)]), words[generator.randrange(len(words))]]
        if generator.random() < 0.5:
            texts[0] = replace(task, no_answer_threshold=np.inf).decode(each).answer  # type: ignore[attr-defined]
        if task.no_answer and generator.random() < 0.5:
            texts = []
        outputs.append(each)
        examples.append(Example((value,), [(text, context.index(text)) for text in texts]))
    return outputs, examples


@pytest.mark.parametrize("task", [SPANS, OR_NONE, replace(OR_NONE, no_answer_threshold=3.0)])
def test_score_is_squads(task: QuestionAnswering, toy_vocab: Path) -> None:
    outputs, examples = questions(task, dice(task, toy_vocab, 40, 2))
    given = [task.decode(each).answer for each in outputs]  # type: ignore[attr-defined]
    gold = [[text for text, _ in example.target] for example in examples]
    exact, f1 = np.mean([squad_scores(*pair) for pair in zip(given, gold, strict=True)], axis=0)
    found = task.score(outputs, examples)
    assert (found["exact_match"], found["f1"]) == (pytest.approx(exact), pytest.approx(f1))
    assert 0.1 < exact < f1 < 0.9
    if task.no_answer:
        assert found["answerability_accuracy"] == pytest.approx(
            np.mean([bool(text) == bool(right) for text, right in zip(given, gold, strict=True)])
        )


@pytest.mark.parametrize("seed", range(2))
def test_no_threshold_beats_the_best(seed: int, toy_vocab: Path) -> None:
    outputs, examples = questions(OR_NONE, dice(OR_NONE, toy_vocab, 40, 2), count=40 + seed)
    found = OR_NONE.score(outputs, examples)

    def f1(threshold: float) -> float:
        return replace(OR_NONE, no_answer_threshold=threshold).score(outputs, examples)["f1"]

    assert f1(found["best_threshold"]) == pytest.approx(found["best_f1"])
    assert max(map(f1, np.linspace(-30, 30, 101))) <= found["best_f1"] + 1e-9
    assert found["best_f1"] > found["f1"]


def record(**fields: Any) -> Record:
    return Record(fields, Path("squad.json"), location="question 7")


def test_a_row_becomes_a_question_with_its_answers() -> None:
    answers = [{"text": "bank", "answer_start": 4}]
    example = SPANS.example(record(question="what?", context="the bank", answers=answers))
    assert example == Example((TextInput("what?", "the bank"),), [("bank", 4)])
    empty = record(question="what?", context="the bank", answers=[])
    assert OR_NONE.example(empty).target == []
    with pytest.raises(DataError, match=r"^squad\.json: question 7: the question has no answer"):
        SPANS.example(empty)


@pytest.mark.parametrize(
    "options",
    [
        {"aggregation": "first"},
        {"top_k": 0},
        {"top_k": 21},
        {"top_k": "3"},
        {"top_k": 1.5},
        {"top_k": None},
        {"n_best": 0},
        {"n_best": 2.5},
        {"max_answer_tokens": 0},
        {"max_answer_tokens": 2.5},
        {"no_answer": "yes"},
        {"no_answer_threshold": "high"},
        {"no_answer_threshold": None},
        {"no_answer_threshold": float("nan")},
    ],
    ids=str,
)
def test_bad_options_are_refused(options: dict[str, Any], toy_vocab: Path) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        dice(SPANS, toy_vocab, 64, 2).with_options(**options)


def test_configuring_leaves_the_model_as_it_was(toy_vocab: Path) -> None:
    model = dice(SPANS, toy_vocab, 64, 2)
    before = model(("who", "late train")).to_dict()
    other = model.with_options(top_k=3, no_answer=True, no_answer_threshold=-np.inf)
    assert other.session is model.session
    assert other(("who", "late train")).to_dict()[0]["answer"] == ""
    assert model.task is SPANS
    assert model(("who", "late train")).to_dict() == before


def test_inputs_may_be_named(toy_vocab: Path) -> None:
    model = dice(SPANS, toy_vocab, 64, 2)
    expected = model(("who", "late train")).to_dict()
    assert model(question="who", context="late train").to_dict() == expected
    assert model({"question": "who", "context": "late train"}).to_dict() == expected
    assert [each.to_dict() for each in model([{"question": "who", "context": "late train"}])] == [expected]
    with pytest.raises(InputError, match="either by position or by name"):
        model("who", context="late train")
