"""Long texts in overlapping windows: every token is used once, from the window with most context."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import transformers
from tokenizers import Tokenizer

from bert_runtime import InputError, Model
from bert_runtime.tasks import QuestionAnswering, ReplacedTokenDetection, Task, TokenClassification

from ..task_models import LABELS, NASTY, RandomRunner, random_model, text_of, with_runner, wordpiece

SIZES = (4, 5, 16, 18, 19, 33, 64)
"""Maximum lengths, with overlaps of 1 to 16 tokens, even and odd."""

TOKEN_TASKS = [
    pytest.param(TokenClassification(labels=LABELS), (5,), id="token-classification"),
    pytest.param(ReplacedTokenDetection(), (), id="replaced-token-detection"),
]


class Window(NamedTuple):
    """A window of the reference implementation."""

    ids: list[int]
    first: int
    """Index of its first token in the text."""
    size: int
    lead: int
    """Number of tokens before the text's."""

    def margin(self, token: int) -> int:
        """Return the number of the text's tokens on that side of `token` that has fewer."""
        return min(token - self.first, self.first + self.size - 1 - token)


def windows_by_hand(tokenizer: Tokenizer, text: str, max_tokens: int, question: str | None = None) -> list[Window]:
    """Cut the tokens of a text into windows; neighbours share a quarter of `max_tokens`."""
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    start, end = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    lead = [start]
    if question is not None:
        lead += [*tokenizer.encode(question, add_special_tokens=False).ids, end]
    size = max_tokens - len(lead) - 1
    windows, first = [], 0
    while not windows or windows[-1].first + size < len(tokens):
        part = tokens[first : first + size]
        windows.append(Window([*lead, *part, end], first, len(part), len(lead)))
        first += size - max_tokens // 4
    return windows


def best_windows(windows: list[Window], token: int) -> list[Window]:
    """Return the windows in which a token is farthest from the edge."""
    having = [window for window in windows if window.first <= token < window.first + window.size]
    return [window for window in having if window.margin(token) == max(other.margin(token) for other in having)]


@pytest.mark.parametrize(("task", "width"), TOKEN_TASKS)
@pytest.mark.parametrize("max_tokens", SIZES)
def test_tokens_come_from_the_window_with_most_context(
    task: Task, width: tuple[int, ...], max_tokens: int, toy_vocab: Path
) -> None:
    tokenizer, model = wordpiece(toy_vocab), random_model(task, toy_vocab, max_tokens, *width)
    for length in (*range(70), 3 * max_tokens, 10 * max_tokens):
        check_tokens(model, tokenizer, text_of(length), RandomRunner(*width))


def check_tokens(model: Model, tokenizer: Tokenizer, text: str, session: RandomRunner) -> None:
    """Compare the tokens of a result with those of the whole text, and their values with those of the best windows."""
    (outputs,) = model.outputs([text])
    found, whole = model.task.decode(outputs).tokens, tokenizer.encode(text, add_special_tokens=False)  # type: ignore[attr-defined]
    assert found.offsets.tolist() == list(map(list, whole.offsets))
    assert found.word_ids.tolist() == whole.word_ids
    assert list(found.strings) == whole.tokens
    windows = windows_by_hand(tokenizer, text, model.tokenizer.max_tokens)
    assert [window.ids for window in outputs.encodings] == [window.ids for window in windows]
    values = {window.first: session.values(window.ids) for window in windows}
    for token, (index, value) in enumerate(zip(found.indices, found.values, strict=True)):
        positions = {(window.first, token - window.first + window.lead) for window in best_windows(windows, token)}
        assert any(position == index and (value == values[first][position]).all() for first, position in positions)


@pytest.mark.parametrize("max_tokens", SIZES)
def test_text_that_fits_is_one_window(max_tokens: int, toy_vocab: Path) -> None:
    tokenizer, model = wordpiece(toy_vocab), random_model(ReplacedTokenDetection(), toy_vocab, max_tokens)
    fits = text_of(max_tokens - 2)
    for text in ("", text_of(1), fits):
        (outputs,) = model.outputs([text])
        (encoding,) = outputs.encodings
        assert encoding.ids == tokenizer.encode(text).ids
        assert outputs.arrays[0].tolist() == RandomRunner().values(encoding.ids).tolist()
    assert len(model.outputs([fits])[0].encodings[0]) == max_tokens
    assert len(model.outputs([text_of(max_tokens - 1)])[0].encodings) == 2


@pytest.mark.parametrize("text", [*NASTY, " ".join(NASTY)])
@pytest.mark.parametrize("max_tokens", [8, 29])
def test_unusual_texts_keep_every_token(text: str, max_tokens: int, toy_vocab: Path) -> None:
    tokenizer, model = wordpiece(toy_vocab), random_model(TokenClassification(labels=LABELS), toy_vocab, max_tokens, 5)
    check_tokens(model, tokenizer, text, RandomRunner(5))


@pytest.mark.shared_data
@pytest.mark.parametrize("text", [" ".join(NASTY), "a  b   c \n\n 😀😀 naïve 東京 " * 9])
@pytest.mark.parametrize("max_tokens", [16, 37])
def test_byte_level_vocabulary_keeps_every_token(text: str, max_tokens: int, shared_data: Path) -> None:
    """Several tokens may stand for one character, and some for none."""
    vocab = shared_data / "vocab"
    files = str(vocab / "roberta-base" / "vocab.json"), str(vocab / "gpt2" / "merges.txt")
    tokenizer = transformers.RobertaTokenizer(*files)._tokenizer
    model = with_runner(RandomRunner(), ReplacedTokenDetection(), tokenizer, max_tokens)
    whole, tokens = tokenizer.encode(text, add_special_tokens=False), model(text).tokens
    assert tokens.offsets.tolist() == list(map(list, whole.offsets))
    assert (tokens.word_ids.tolist(), list(tokens.strings)) == (whole.word_ids, whole.tokens)


@pytest.mark.parametrize("max_tokens", [16, 19, 64])
def test_start_tokens_come_from_the_window_with_most_context(max_tokens: int, toy_vocab: Path) -> None:
    """With questions of all possible lengths, up to windows that advance by one token."""
    from bert_runtime.tasks.tokens import kept_token_indices

    tokenizer, model = wordpiece(toy_vocab), random_model(QuestionAnswering(), toy_vocab, max_tokens, 2)
    for question_length in range(max_tokens - 3 - max_tokens // 4):
        question, context = text_of(question_length, seed=1), text_of(60)
        (outputs,) = model.outputs([(question, context)])
        windows = windows_by_hand(tokenizer, context, max_tokens, question)
        assert [window.ids for window in outputs.encodings] == [window.ids for window in windows]
        kept = [
            (position - window.lead + window.first, window)
            for window, positions in zip(windows, kept_token_indices(outputs, 1), strict=True)
            for position in positions.tolist()
        ]
        assert [token for token, _ in kept] == list(range(60))
        assert all(window in best_windows(windows, token) for token, window in kept)


def valid_then(bad: Any, task: Task, at: int) -> Iterator[Any]:
    """Yield `at` valid inputs, then `bad`."""
    yield from [("who", "me") if task.windows == "text_pair" else "fine"] * at
    yield bad


TAGS = TokenClassification(labels=LABELS)
ANSWERS = QuestionAnswering()
LONG = text_of(500)

BAD_INPUTS = [
    pytest.param(TAGS, ("a", "b"), "expected one text, found a pair", id="pair"),
    pytest.param(TAGS, {"question": "a", "context": "b"}, "expected one text, found a pair", id="question"),
    pytest.param(ReplacedTokenDetection(), ("a", "b"), "expected one text, found a pair", id="replaced pair"),
    pytest.param(TAGS, "a\ud83d", r"lone surrogate \(U\+D83D\) at character 1", id="surrogate"),
    pytest.param(TAGS, LONG + "\udc80", "lone surrogate", id="surrogate in a long text"),
    pytest.param(ANSWERS, "a", "expected a pair of texts, found one", id="single"),
    pytest.param(ANSWERS, {"text": "a"}, "expected a pair of texts, found one", id="single text"),
    pytest.param(ANSWERS, {"question": "a"}, "expected a pair of texts, found one", id="no context"),
    pytest.param(ANSWERS, ("\ud800", "a"), "lone surrogate", id="surrogate in the question"),
    pytest.param(ANSWERS, ("a", "bc\ud800"), "lone surrogate .* at character 2", id="surrogate in the context"),
    pytest.param(ANSWERS, ("a", ""), "the context has no tokens", id="empty context"),
    pytest.param(ANSWERS, ("a", " \x00\n"), "the context has no tokens", id="blank context"),
    pytest.param(ANSWERS, (text_of(18), "a"), "the first text has 18 tokens; expected at most 17", id="one too many"),
    pytest.param(ANSWERS, (text_of(32), LONG), "the first text has 32 tokens", id="question as long as a window"),
    pytest.param(ANSWERS, (LONG, LONG), "the first text has 500 tokens", id="long question"),
    pytest.param(ANSWERS, (LONG, ""), "the first text has 500 tokens", id="long question and no context"),
]


@pytest.mark.parametrize(("task", "value", "message"), BAD_INPUTS)
@pytest.mark.parametrize("at", [0, 1, 600])
def test_invalid_inputs_are_reported_with_their_index(
    task: Task, value: Any, message: str, at: int, toy_vocab: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = random_model(task, toy_vocab, 27, *((5,) if task is TAGS else (2,) if task is ANSWERS else ()))
    with pytest.raises(InputError, match=rf"^input {at}\b.*{message}"):
        list(model.stream(valid_then(value, task, at)))
    with pytest.raises(InputError, match=rf"^input {at}\b.*{message}"):
        model(list(valid_then(value, task, at)))
    if at == 0:
        with pytest.raises(InputError, match=rf"^input 0\b.*{message}"):
            model(value)
    assert capfd.readouterr().err == ""  # the tokenizer's own library would print a backtrace


def test_longest_possible_question_is_answered(toy_vocab: Path) -> None:
    model = random_model(ANSWERS, toy_vocab, 27, 2)
    assert len(model((text_of(17), LONG)).logits) == 500 - 6
    assert len(model((text_of(17), text_of(7))).logits) == 1
