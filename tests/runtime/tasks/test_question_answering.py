"""question-answering: decoding, compared with an exhaustive search over all spans, and options."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Metaspace

from bert_runtime import InputError, Model
from bert_runtime.tasks import Answers, Outputs, QuestionAnswering, TextInput

from ..outputs import NoVocabulary
from ..task_models import (
    RandomRunner,
    check_agreement,
    exported,
    random_model,
    reference,
    text_of,
    with_runner,
    wordpiece,
)
from .reading_data import OR_NONE, SPANS, VOCABULARIES, paragraphs, real_tokenizer, words_of


class Span(NamedTuple):
    """A candidate of the exhaustive search."""

    score: float
    start: int
    end: int
    text: str


def every_span(outputs: Outputs, task: QuestionAnswering) -> list[Span]:
    """List all candidates, best first.

    A start is taken from the window with most context, the later of equal ones; or, of a span that does not end there,
    from the next window.
    """
    context = outputs.input.text_pair or ""
    spans, windows = [], []
    for encoding, row in zip(outputs.encodings, outputs.arrays, strict=True):
        indices = [i for i, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
        first = token_numbers(outputs)[id(encoding)]
        windows.append((encoding, row.astype(np.float64), indices, first))
    for number, (encoding, row, indices, first) in enumerate(windows):
        for i, index in enumerate(indices):
            margins = [
                (min(first + i - other, other + len(inside) - 1 - first - i), rank)
                for rank, (_, _, inside, other) in enumerate(windows)
                if other <= first + i < other + len(inside)
            ]
            owner = max(margins)[1]
            if owner not in (number - 1, number):
                continue
            for end in indices[i : i + task.max_answer_tokens]:
                _, _, inside, other = windows[owner]
                if owner != number and first + end - indices[0] < other + len(inside):
                    continue
                start, after = encoding.offsets[index][0], encoding.offsets[end][1]
                spans.append(Span(row[index, 0] + row[end, 1], start, after, context[start:after]))
    return sorted(spans, key=lambda span: -span.score)


def token_numbers(outputs: Outputs) -> dict[int, int]:
    """Return the index in the context of each window's first token, by window."""
    numbers, first = {}, 0
    shared = len(outputs.encodings[0]) // 4
    for encoding in outputs.encodings:
        numbers[id(encoding)] = first
        first += encoding.sequence_ids.count(1) - shared
    return numbers


def unique(spans: Sequence[Span], count: int) -> list[Span]:
    """Return the best spans with distinct texts."""
    found: dict[str, Span] = {}
    for span in spans:
        found.setdefault(span.text, span)
    return list(found.values())[:count]


def check(outputs: Outputs, task: QuestionAnswering) -> None:
    """Compare all answers of a task with those of the exhaustive search."""
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
    assert [(answer.answer, answer.start, answer.end) for answer in answers.answers] == [
        (span.text, span.start, span.end) for span in expected
    ]
    assert [answer.score for answer in answers.answers] == pytest.approx([chances[span] for span in expected], abs=1e-5)
    assert answers.no_answer_score == pytest.approx(null - best[0].score, abs=1e-4)


@pytest.mark.parametrize("no_answer", [False, True])
@pytest.mark.parametrize("n_best", [1, 4, 20])
@pytest.mark.parametrize("max_answer_tokens", [1, 3, 30, 1000])
def test_answers_equal_exhaustive_search(max_answer_tokens: int, n_best: int, no_answer: bool, toy_vocab: Path) -> None:
    task = QuestionAnswering(no_answer=no_answer, max_answer_tokens=max_answer_tokens, n_best=n_best)
    for max_tokens in (20, 41, 64):
        model = random_model(task, toy_vocab, max_tokens, 2)
        for num_words in (1, 2, 9, 30, 60):
            (outputs,) = model.outputs([(words_of(3, 1), words_of(num_words, 2))])
            check(outputs, task)


@pytest.mark.parametrize("threshold", [-np.inf, -10.0, -4.0, 0.0, np.inf])
def test_threshold_alone_decides_between_best_span_and_no_answer(threshold: float, toy_vocab: Path) -> None:
    model = random_model(OR_NONE, toy_vocab, 30, 2).with_options(no_answer_threshold=threshold)
    decisions = set()
    for seed in range(30):
        (outputs,) = model.outputs([(words_of(2, seed), words_of(5, seed))])
        check(outputs, model.task)
        answers = model.task.decode(outputs)
        assert (answers.answer == "") == (answers.no_answer_score > threshold)
        decisions.add(answers.answer == "")
    assert decisions == ({True} if threshold == -np.inf else {False} if threshold == np.inf else {True, False})


def test_no_answer_is_the_empty_span_at_zero(toy_vocab: Path) -> None:
    model = random_model(OR_NONE, toy_vocab, 30, 2).with_options(no_answer_threshold=-np.inf)
    answer = model(question="who", context="the bank")
    assert answer.to_dict() == {"answer": "", "score": answer.score, "start": 0, "end": 0}
    several = model.with_options(top_k=2)(question="who", context="the bank")
    assert several.answers[0] == answer.answers[0]
    assert several.answers[1] == model.with_options(no_answer_threshold=np.inf)(("who", "the bank")).answers[0]


def test_candidates_with_equal_text_are_merged(toy_vocab: Path) -> None:
    """`n_best` counts candidates with distinct texts."""
    task = QuestionAnswering(n_best=3, top_k=3, max_answer_tokens=1)
    tokenizer = wordpiece(toy_vocab)
    best = ("bank", "train", "rain")
    model = with_runner(Ranked(*map(tokenizer.token_to_id, best)), task, tokenizer, 64)
    answers = model(question="who", context="late bank bank train bank bank train rain")
    assert tuple(answer.answer for answer in answers.answers) == best


class Ranked(RandomRunner):
    """A session that scores some tokens highest, in their order, and all others equally."""

    def __init__(self, *tokens: int) -> None:
        super().__init__(2)
        self.tokens = tokens

    def values(self, ids: Sequence[int]) -> Any:
        scores = [10 - self.tokens.index(token) if token in self.tokens else 0 for token in ids]
        return np.array([scores, scores], dtype=np.float32).T


@pytest.mark.parametrize("top_k", [1, 2, 20])
def test_json_is_an_object_or_a_list(top_k: int, toy_vocab: Path) -> None:
    model = random_model(SPANS, toy_vocab, 64, 2)
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


def test_answers_begin_with_a_character_that_can_be_seen() -> None:
    """As DeBERTa's tokenizer, this one has the space before a word in the word's token."""
    tokenizer = Tokenizer(WordLevel({"<unk>": 0, "▁where": 1, "▁in": 2, "▁Paris": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Metaspace()
    encoding = tokenizer.encode("where", "in Paris in Paris")
    logits = 5 * np.array([[0, 0], [-1, -1], [1, 1], [-1, -1], [0.9, 0.9]])
    text = TextInput("where", "in Paris in Paris")
    task = replace(SPANS, top_k=9, max_answer_tokens=1)
    found = task.decode(Outputs(text, (encoding,), (logits,), NoVocabulary())).answers  # type: ignore[attr-defined]
    assert [(answer.answer, answer.start, answer.end) for answer in found] == [("Paris", 3, 8), ("in", 0, 2)]


def test_short_context_yields_every_span(toy_vocab: Path) -> None:
    answers = random_model(SPANS, toy_vocab, 64, 2).with_options(top_k=20)(("who", "late train"))
    assert {answer.answer for answer in answers.answers} == {"late", "train", "late train"}
    assert sum(answer.score for answer in answers.answers) == pytest.approx(1)


@pytest.mark.parametrize("question", ["", "who", "[SEP] who [SEP]"])
@pytest.mark.parametrize("max_tokens", [16, 40])
def test_answers_are_never_in_question_or_special_tokens(question: str, max_tokens: int, toy_vocab: Path) -> None:
    """Even if they have the highest scores."""
    model = with_runner(OutsideIsBest(), SPANS, wordpiece(toy_vocab), max_tokens)
    context = "late " + "bank " * 40
    assert {model((question, context)).answer for _ in range(2)} <= {"late", *("bank " * n + "bank" for n in range(30))}


class OutsideIsBest(RandomRunner):
    """A session with scores that fall from the first token on, and a high end score for the final separator."""

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


def test_bundle_logits_equal_transformers(exported_reader: tuple[Any, Model]) -> None:
    """In every window, with the token types of a pair."""
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
    """On contexts of all lengths around the windows' boundaries."""
    _, ours = exported_reader
    model = with_runner(ours.session, ours.task, wordpiece(toy_vocab), max_tokens).with_options(top_k=5)
    check_agreement(model, [(text_of(i % (max_tokens // 2), 1), text_of(i)) for i in (*range(1, 61), 90, 200)])


@pytest.mark.shared_data
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_real_contexts_equal_exhaustive_search(vocabulary: str, shared_data: Path) -> None:
    tokenizer = real_tokenizer(shared_data / "vocab", vocabulary)
    for max_tokens, task in ((64, SPANS), (384, replace(OR_NONE, max_answer_tokens=4))):
        model = with_runner(RandomRunner(2), task, tokenizer, max_tokens)
        pairs = [(qas[0]["question"], context[:600]) for context, qas in paragraphs(shared_data)[::30]]
        for outputs in model.outputs(pairs):
            check(outputs, task)


UNUSUAL = "Zoë  fährt   nach 東京 — 😀😀  e\u0301te\u0301\u200b in   Kraków\n\n\t(PL)   ."


@pytest.mark.shared_data
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_answers_are_nonempty_spans_of_the_context(vocabulary: str, shared_data: Path) -> None:
    """A byte-level vocabulary has tokens without characters, but an empty answer would mean "no answer"."""
    tokenizer = real_tokenizer(shared_data / "vocab", vocabulary)
    model = with_runner(RandomRunner(2), replace(SPANS, top_k=20), tokenizer, 64)
    for seed in range(10):
        for answer in model((f"who {seed}", UNUSUAL)).answers:
            assert answer.answer == UNUSUAL[answer.start : answer.end]
            assert answer.answer


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
def test_invalid_options_are_refused(options: dict[str, Any], toy_vocab: Path) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        random_model(SPANS, toy_vocab, 64, 2).with_options(**options)


def test_with_options_does_not_change_the_original_model(toy_vocab: Path) -> None:
    model = random_model(SPANS, toy_vocab, 64, 2)
    before = model(("who", "late train")).to_dict()
    other = model.with_options(top_k=3, no_answer=True, no_answer_threshold=-np.inf)
    assert other.session is model.session
    assert other(("who", "late train")).to_dict()[0]["answer"] == ""
    assert model.task is SPANS
    assert model(("who", "late train")).to_dict() == before


def test_inputs_by_keyword_and_as_dict(toy_vocab: Path) -> None:
    model = random_model(SPANS, toy_vocab, 64, 2)
    expected = model(("who", "late train")).to_dict()
    assert model(question="who", context="late train").to_dict() == expected
    assert model({"question": "who", "context": "late train"}).to_dict() == expected
    assert [result.to_dict() for result in model([{"question": "who", "context": "late train"}])] == [expected]
    with pytest.raises(InputError, match="either by position or by name"):
        model("who", context="late train")
