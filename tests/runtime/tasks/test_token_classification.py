"""token-classification: transformers' pipeline on real texts, and sequences of labels against all there are."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import transformers

from bert_runtime import InputError, Model
from bert_runtime.errors import BundleError, DataError
from bert_runtime.metrics import entity_f1, entity_spans
from bert_runtime.records import Record
from bert_runtime.tasks import TokenClassification, task_from_dict
from bert_runtime.tasks.token_classification import AGGREGATIONS

from ..task_models import (
    LABELS,
    NASTY,
    Dice,
    check_agreement,
    dice,
    exported,
    labelled,
    reference,
    stsb,
    text_of,
    with_session,
    wnut,
    wordpiece,
)

TEXTS = (
    "Antananarivo is the best bank",
    "hello zebra , good film",
    "see xyz",
    "parcel - refund / unhelpfully",
    "q",
)
"""Texts of up to six words of the toy vocabulary, some of which are spelled letter by letter."""

TAGS = TokenClassification(labels=LABELS)


class Pair(NamedTuple):
    """transformers' pipeline, our bundle of the same checkpoint, and the texts that both answer."""

    pipeline: Any
    model: Model
    tokenizer: Any
    texts: list[str]


@pytest.fixture(scope="module")
def toy_pair(toy_vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(toy_vocab, [*NASTY, *TEXTS], tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def uncased_pair(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    texts = [*NASTY, *TEXTS, *wnut(shared_data), *stsb(shared_data)]
    return make_pair(shared_data / "vocab" / "bert-base-uncased", texts, tmp_path_factory.mktemp("uncased"))


def make_pair(vocab: Path, texts: list[str], folder: Path) -> Pair:
    tokenizer = transformers.BertTokenizer(str(vocab / "vocab.txt"))
    theirs = reference("BertForTokenClassification", tokenizer, **labelled())
    pipeline = transformers.pipeline("token-classification", model=theirs, tokenizer=tokenizer)
    return Pair(pipeline, exported(theirs, tokenizer, folder), tokenizer, texts)


@pytest.fixture(scope="module")
def cased_pair(uncased_pair: Pair, shared_data: Path) -> Pair:
    """The same random model, whose vocabulary is larger, reading tokens of another."""
    vocab = shared_data / "vocab" / "bert-base-cased" / "vocab.txt"
    tokenizer = transformers.BertTokenizer(str(vocab), do_lower_case=False)
    theirs, ours = uncased_pair.pipeline.model, uncased_pair.model
    pipeline = transformers.pipeline("token-classification", model=theirs, tokenizer=tokenizer)
    model = with_session(ours.session, ours.task, tokenizer._tokenizer, ours.tokenizer.max_tokens)
    return Pair(pipeline, model, tokenizer, uncased_pair.texts)


@pytest.fixture(
    params=[
        "toy",
        pytest.param("uncased", marks=pytest.mark.shared_data),
        pytest.param("cased", marks=[pytest.mark.shared_data, pytest.mark.slow]),
    ],
)
def pair(request: pytest.FixtureRequest) -> Pair:
    found: Pair = request.getfixturevalue(f"{request.param}_pair")
    return found


def heuristic_errs(tokenizer: Any, text: str) -> bool:
    """Whether transformers takes the start of a word for a part of the one before, or the other way round.

    It takes a known token for a part of a word if its spelling is longer or shorter than the text it stands for.
    """
    encoding = tokenizer(text).encodings[0]
    inside = [i for i, sequence in enumerate(encoding.sequence_ids) if sequence == 0]
    for before, after in pairwise(inside):
        start, end = encoding.offsets[after]
        differs = len(encoding.tokens[after]) != end - start and encoding.tokens[after] != tokenizer.unk_token
        if differs != (encoding.word_ids[before] == encoding.word_ids[after]):
            return True
    return False


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_entities_are_those_of_transformers(pair: Pair, aggregation: str) -> None:
    by_word = aggregation not in ("none", "simple")
    texts = [text for text in pair.texts if not (by_word and heuristic_errs(pair.tokenizer, text))]
    assert len(pair.texts) - len(texts) <= 1
    expected = pair.pipeline(texts, aggregation_strategy=aggregation)
    answers = pair.model.with_options(aggregation=aggregation)(texts)
    for text, answer, theirs in zip(texts, answers, expected, strict=True):
        found = answer.to_dict()
        assert [place(each) for each in found] == [place(each) for each in theirs]
        assert [each["score"] for each in found] == pytest.approx([float(each["score"]) for each in theirs], abs=1e-4)
        assert all(each["word"] == text[each["start"] : each["end"]] for each in found if "entity_group" in each)


def place(entity: dict[str, Any]) -> tuple[Any, ...]:
    """All that must be equal of an entity; the word only of a known token, for transformers shows an unknown one."""
    label = entity.get("entity", entity.get("entity_group"))
    return label, entity["start"], entity["end"], entity.get("index")


def test_without_aggregation_words_are_tokens(pair: Pair) -> None:
    """As in transformers, but for an unknown token, where transformers has the text."""
    answers = pair.model.with_options(aggregation="none")(pair.texts)
    for answer, theirs in zip(answers, pair.pipeline(pair.texts, aggregation_strategy="none"), strict=True):
        for found, entity in zip(answer.to_dict(), theirs, strict=True):
            assert found["word"] in (entity["word"], "[UNK]")


def test_the_random_model_uses_every_label(pair: Pair) -> None:
    """Or else the comparisons would say little."""
    found = [
        each.label for answer in pair.model.with_options(aggregation="none")(pair.texts) for each in answer.entities
    ]
    assert min(found.count(label) for label in LABELS[1:]) > 0.01 * len(found)
    tokens = sum(len(answer.tokens.strings) for answer in pair.model(pair.texts))
    assert len(found) < tokens


@pytest.mark.parametrize("aggregation", ["none", "simple", "max"])
@pytest.mark.parametrize("max_tokens", [16, 21, 64])
def test_batch_single_and_stream_agree(toy_pair: Pair, max_tokens: int, aggregation: str) -> None:
    """On texts of every length around windows' boundaries."""
    ours = toy_pair.model
    model = with_session(ours.session, ours.task, toy_pair.tokenizer._tokenizer, max_tokens)
    texts = [text_of(length) for length in (*range(60), 200)]
    check_agreement(model.with_options(aggregation=aggregation), texts)


@pytest.mark.parametrize("aggregation", ["first", "average", "max"])
def test_words_are_the_tokenizers_where_transformers_guesses(pair: Pair, aggregation: str) -> None:
    """The token for a word with a soft hyphen is shorter than its text, so transformers adds it to the word before."""
    text = "the bo\u00adok"
    assert heuristic_errs(pair.tokenizer, text)
    tagged = with_session(Agreeing(), TAGS, pair.tokenizer._tokenizer, 64).with_options(aggregation=aggregation)
    assert [(each.start, each.end) for each in tagged(text).entities] == [(0, 3), (4, 9)]
    expected = pair.pipeline(text, aggregation_strategy=aggregation)
    assert all((each["start"], each["end"]) == (0, 9) for each in expected)


class Agreeing(Dice):
    """Every token begins a person."""

    def __init__(self) -> None:
        super().__init__(5)

    def values(self, ids: Sequence[int]) -> Any:
        return np.tile(np.array([0, 5, 0, 0, 0], dtype=np.float32), (len(ids), 1))


def words_of(model: Model, text: str) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The logits of each word's first token [W, labels], and each word's characters."""
    (outputs,) = model.outputs([text])
    (encoding,), (row,) = outputs.encodings, outputs.arrays
    inside = [i for i, sequence in enumerate(encoding.sequence_ids) if sequence == 0]
    words = [list(places) for _, places in groupby(inside, key=lambda i: encoding.word_ids[i])]
    spans = [(encoding.offsets[places[0]][0], encoding.offsets[places[-1]][1]) for places in words]
    return row[[places[0] for places in words]].astype(np.float64), spans


def legal(labels: Sequence[str]) -> bool:
    return all(
        not after.startswith("I-") or before in (after, f"B-{after[2:]}") for before, after in pairwise(["O", *labels])
    )


def best_sequence(logits: np.ndarray, transitions: np.ndarray, bio: bool) -> tuple[list[str], list[float]]:
    """Of all sequences of labels the best, and the share of the sequences that agree with it at each word."""
    ways = [way for way in product(range(5), repeat=len(logits)) if not bio or legal([LABELS[i] for i in way])]
    table = np.array(ways)
    totals = logits[np.arange(len(logits)), table].sum(axis=1)
    totals += transitions[table[:, :-1], table[:, 1:]].sum(axis=1)
    totals += transitions[5, table[:, 0]] + transitions[6, table[:, -1]]
    weights, best = np.exp(totals - totals.max()), table[totals.argmax()]
    shares = [float(weights[table[:, i] == label].sum() / weights.sum()) for i, label in enumerate(best)]
    return [LABELS[label] for label in best], shares


def chain(seed: int) -> np.ndarray:
    return np.round(2 * np.random.default_rng(seed).standard_normal((7, 5)), 3)


SEQUENCES = [
    pytest.param(TAGS, np.zeros((7, 5)), True, id="bio"),
    *(
        pytest.param(
            replace(TAGS, crf=True, bio=bio, transitions=tuple(map(tuple, chain(seed).tolist()))),
            chain(seed),
            bio,
            id=f"crf-{seed}{' bio' if bio else ''}",
        )
        for seed in range(3)
        for bio in (False, True)
    ),
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("aggregation", ["simple", "first", "average", "max"])
@pytest.mark.parametrize(("task", "transitions", "bio"), SEQUENCES)
def test_sequences_are_the_best_of_all(
    task: TokenClassification, transitions: np.ndarray, bio: bool, aggregation: str, text: str, toy_vocab: Path
) -> None:
    """Whatever the aggregation, since words are labelled as a whole."""
    model = dice(replace(task, aggregation=aggregation, bio=bio), toy_vocab, 64, 5)
    logits, spans = words_of(model, text)
    labels, shares = best_sequence(logits, transitions, bio)
    assert not bio or legal(labels)
    found = model(text).entities
    expected = entity_spans(labels)
    assert [(each.label, each.start, each.end) for each in found] == [
        (kind, spans[first][0], spans[after - 1][1]) for kind, first, after in expected
    ]
    if aggregation != "simple":  # which takes the mean over tokens
        means = [np.mean(shares[first:after]) for _, first, after in expected]
        assert [each.score for each in found] == pytest.approx(means, abs=1e-5)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("task", "transitions", "bio"), SEQUENCES)
def test_without_aggregation_a_words_first_token_has_its_label(
    task: TokenClassification, transitions: np.ndarray, bio: bool, text: str, toy_vocab: Path
) -> None:
    model = dice(replace(task, aggregation="none", bio=bio), toy_vocab, 64, 5)
    logits, spans = words_of(model, text)
    labels, _ = best_sequence(logits, transitions, bio)
    found = {each.start: each.label for each in model(text).entities}
    assert [found.get(start, "O") for start, _ in spans] == labels


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_bio_never_breaks_the_scheme(aggregation: str, toy_vocab: Path) -> None:
    """Over several windows too. Without it, random logits always do."""
    text, model = " ".join(TEXTS * 8), dice(TAGS, toy_vocab, 16, 5)
    tokens = wordpiece(toy_vocab).encode(text, add_special_tokens=False).offsets

    def labels(of: Model) -> list[str]:
        found = {each.start: each.label for each in of(text).entities}
        return [found.get(start, "O") for start, _ in tokens]

    assert not legal(labels(model.with_options(aggregation="none")))
    assert legal(labels(model.with_options(aggregation="none", bio=True)))
    free, held = (model.with_options(aggregation=aggregation, bio=bio)(text) for bio in (False, True))
    assert [each.label for each in free.entities] != [each.label for each in held.entities]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_text_without_tokens_has_no_entities(aggregation: str, toy_vocab: Path) -> None:
    for bio in (False, True):
        model = dice(replace(TAGS, aggregation=aggregation, bio=bio), toy_vocab, 16, 5)
        assert [model(text).to_dict() for text in ("", " ", "\x00")] == [[], [], []]


def test_entities_by_hand(toy_vocab: Path) -> None:
    """A word of three tokens, of which the first, the mean and the surest say different things."""
    chances = np.array([[0.5, 0.1, 0.0, 0.3, 0.1], [0.2, 0.4, 0.0, 0.3, 0.1], [0.0, 0.0, 0.0, 0.1, 0.9]])
    model = with_session(Scripted(np.log(chances + 1e-9)), TAGS, wordpiece(toy_vocab), 16)

    def found(aggregation: str) -> list[tuple[str, str, float]]:
        entities = model.with_options(aggregation=aggregation)("xyz").entities
        return [(each.label, each.text, round(each.score, 3)) for each in entities]

    assert found("none") == [("B-PER", "y", 0.4), ("I-LOC", "z", 0.9)]
    assert found("simple") == [("PER", "y", 0.4), ("LOC", "z", 0.9)]
    assert found("first") == []
    assert found("average") == [("LOC", "xyz", 0.367)]
    assert found("max") == [("LOC", "xyz", 0.9)]


class Scripted(Dice):
    """Given logits for the tokens between the special ones."""

    def __init__(self, logits: np.ndarray) -> None:
        super().__init__(logits.shape[1])
        self.logits = logits

    def values(self, ids: Sequence[int]) -> Any:
        return np.pad(self.logits, ((1, 1), (0, 0))).astype(np.float32)


@pytest.mark.parametrize(
    ("labels", "kinds"),
    [
        (("B-PER", "I-PER", "O", "I-PER", "B-LOC"), [("PER", 0, 2), ("PER", 3, 4), ("LOC", 4, 5)]),
        (("B-PER", "B-PER", "I-LOC", "I-LOC", "I-PER"), [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 4), ("PER", 4, 5)]),
        (("O", "O", "O", "O", "O"), []),
    ],
)
def test_neighbours_of_one_type_make_an_entity(labels: tuple[str, ...], kinds: list[Any], toy_vocab: Path) -> None:
    logits = 5 * np.eye(5)[[LABELS.index(label) for label in labels]]
    model = with_session(Scripted(logits), TAGS, wordpiece(toy_vocab), 16)
    text = "a b c d e"
    expected = [(kind, text[2 * first : 2 * after - 1], 2 * first, 2 * after - 1) for kind, first, after in kinds]
    for aggregation in AGGREGATIONS[1:]:
        found = model.with_options(aggregation=aggregation)(text).entities
        assert [(each.label, each.text, each.start, each.end) for each in found] == expected


def test_labels_without_a_scheme_are_types(toy_vocab: Path) -> None:
    task = TokenClassification(labels=("NOUN", "VERB", "O"))
    model = with_session(Scripted(5 * np.eye(3)[[0, 0, 1, 2, 1]]), task, wordpiece(toy_vocab), 16)
    assert [(each.label, each.text) for each in model("a b c d e").entities] == [
        ("NOUN", "a b"),
        ("VERB", "c"),
        ("VERB", "e"),
    ]


def test_json_has_the_pipelines_keys(toy_vocab: Path) -> None:
    model = with_session(Scripted(5 * np.eye(5)[[0, 1, 2]]), TAGS, wordpiece(toy_vocab), 16)
    score = pytest.approx(float(np.exp(5) / (np.exp(5) + 4)))
    assert model("a xy").to_dict() == [{"entity_group": "PER", "score": score, "word": "xy", "start": 2, "end": 4}]
    assert model.with_options(aggregation="none")("a xy").to_dict() == [
        {"entity": "B-PER", "score": score, "index": 2, "word": "x", "start": 2, "end": 3},
        {"entity": "I-PER", "score": score, "index": 3, "word": "##y", "start": 3, "end": 4},
    ]


def record(words: Sequence[str], tags: Sequence[str]) -> Record:
    return Record({"tokens": list(words), "tags": list(tags)}, Path("data.jsonl"), 3)


WORDS = ("hello", "zebra", "a-b", "\x07", "é", "x" * 120, "東京", "New", ",")


def labels_by_hand(model: Model, words: Sequence[str]) -> list[str]:
    """The label of each word's first token, found character by character; one without tokens is outside."""
    text, start, labels = " ".join(words), 0, []
    tokens = model(text).tokens
    for word in words:
        places = [i for i, (first, after) in enumerate(tokens.offsets) if after > start and first < start + len(word)]
        labels.append(LABELS[tokens.values[places[0]].argmax()] if places else "O")
        start += len(word) + 1
    return labels


@pytest.mark.parametrize("max_tokens", [16, 64])
@pytest.mark.parametrize("seed", range(3))
def test_score_counts_the_words_of_the_file(seed: int, max_tokens: int, toy_vocab: Path) -> None:
    model, generator = dice(TAGS, toy_vocab, max_tokens, 5), np.random.default_rng(seed)
    sentences = [generator.choice(WORDS, generator.integers(1, 30)).tolist() for _ in range(8)]
    predicted = [labels_by_hand(model, words) for words in sentences]
    gold = [[tag if generator.random() < 0.7 else str(generator.choice(LABELS)) for tag in tags] for tags in predicted]
    examples = [model.task.example(record(*pair)) for pair in zip(sentences, gold, strict=True)]
    found = model.task.score(model.outputs([each.inputs[0] for each in examples]), examples)
    right = [one == other for pair in zip(gold, predicted, strict=True) for one, other in zip(*pair, strict=True)]
    assert found == {**entity_f1(predicted, gold), "accuracy": pytest.approx(np.mean(right))}
    assert 0.3 < found["f1"] < 1


@pytest.mark.parametrize(("task", "transitions", "bio"), SEQUENCES)
def test_score_decodes_the_sequence_of_words(
    task: TokenClassification, transitions: np.ndarray, bio: bool, toy_vocab: Path
) -> None:
    model = dice(replace(task, bio=bio), toy_vocab, 64, 5)
    words = ["hello", "zebra", "\x07", "film", "xyz"]
    logits, _ = words_of(model, " ".join(words))
    labels, _ = best_sequence(logits, transitions, bio)
    gold = [*labels[:2], "O", *labels[2:]]
    example = model.task.example(record(words, gold))
    assert model.task.score(model.outputs(example.inputs), [example])["accuracy"] == 1


def test_a_word_without_tokens_is_wrong_where_nothing_is_outside(toy_vocab: Path) -> None:
    for labels in (("NOUN", "VERB"), ("B-X", "I-X")):
        task = TokenClassification(labels=labels)
        model = with_session(Scripted(5 * np.eye(2)[[0]]), task, wordpiece(toy_vocab), 16)
        for tag in labels:
            example = task.example(record(["a", "\x07"], [labels[0], tag]))
            found = task.score(model.outputs(example.inputs), [example])
            assert found["accuracy"] == 0.5
            assert found.get("f1", 0) < 1


def test_a_tag_that_the_model_lacks_is_named() -> None:
    with pytest.raises(DataError, match=r"^data\.jsonl:3: tags 'B-X' are not among the model's 5 labels"):
        TAGS.example(record(["a", "b"], ["O", "B-X"]))


def test_a_chain_survives_the_manifest() -> None:
    task = replace(TAGS, crf=True, transitions=tuple(map(tuple, chain(0).tolist())))
    assert task_from_dict(json.loads(json.dumps(task.to_dict()))) == task


@pytest.mark.parametrize("transitions", [5, [1, 2], [["a"] * 5] * 7, [[0] * 5] * 5], ids=["5", "flat", "text", "short"])
def test_a_malformed_chain_is_refused(transitions: Any) -> None:
    with pytest.raises(BundleError, match="token-classification"):
        task_from_dict({**TAGS.to_dict(), "crf": True, "transitions": transitions})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 3}, "top_k"),
        ({"labels": ("a", "b")}, "labels"),
        ({"aggregation": "best"}, "'best'"),
        ({"aggregation": None}, "None"),
        ({"bio": "no"}, "'no'"),
        ({"bio": None}, "None"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str, toy_vocab: Path) -> None:
    with pytest.raises(InputError, match=message):
        dice(TAGS, toy_vocab, 16, 5).with_options(**options)


def test_bio_needs_labels_that_have_it(toy_vocab: Path) -> None:
    model = dice(TokenClassification(labels=("NOUN", "VERB")), toy_vocab, 16, 2)
    with pytest.raises(InputError, match="bio"):
        model.with_options(bio=True)


def test_configuring_leaves_the_model_as_it_was(toy_vocab: Path) -> None:
    model = dice(TAGS, toy_vocab, 16, 5)
    before = model(TEXTS[0]).to_dict()
    other = model.with_options(aggregation="none", bio=True)
    assert other.session is model.session
    assert other.tokenizer is model.tokenizer
    assert other(TEXTS[0]).to_dict() != before
    assert model.task is TAGS
    assert model(TEXTS[0]).to_dict() == before
