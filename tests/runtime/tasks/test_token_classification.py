"""token-classification: entities, compared with the transformers pipeline on real texts, and options."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Metaspace

from bert_runtime import InputError, Model
from bert_runtime.tasks import Outputs, TextInput, TokenClassification
from bert_runtime.tasks.token_classification import AGGREGATIONS

from ..outputs import NoVocabulary
from ..task_models import (
    LABELS,
    NASTY,
    RandomRunner,
    check_agreement,
    exported,
    labelled,
    random_model,
    reference,
    stsb,
    text_of,
    with_runner,
    wnut,
    wordpiece,
)
from .tagging_data import TAGS, TEXTS, Scripted


class Pair(NamedTuple):
    """The transformers pipeline, a bundle of the same checkpoint, and texts for both."""

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
    """The same random model with a tokenizer of a smaller vocabulary."""
    vocab = shared_data / "vocab" / "bert-base-cased" / "vocab.txt"
    tokenizer = transformers.BertTokenizer(str(vocab), do_lower_case=False)
    theirs, ours = uncased_pair.pipeline.model, uncased_pair.model
    pipeline = transformers.pipeline("token-classification", model=theirs, tokenizer=tokenizer)
    model = with_runner(ours.session, ours.task, tokenizer._tokenizer, ours.tokenizer.max_tokens)
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
    """Return whether the word boundaries of transformers' heuristic differ from the tokenizer's.

    The heuristic continues a word at a known token whose spelling is longer or shorter than its text.
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
def test_entities_equal_transformers(pair: Pair, aggregation: str) -> None:
    by_word = aggregation not in ("none", "simple")
    texts = [text for text in pair.texts if not (by_word and heuristic_errs(pair.tokenizer, text))]
    assert len(pair.texts) - len(texts) <= 1
    expected = pair.pipeline(texts, aggregation_strategy=aggregation)
    answers = pair.model.with_options(aggregation=aggregation)(texts)
    for text, answer, theirs in zip(texts, answers, expected, strict=True):
        found = answer.to_dict()
        assert [comparable(entity) for entity in found] == [comparable(entity) for entity in theirs]
        assert [entity["score"] for entity in found] == pytest.approx(
            [float(entity["score"]) for entity in theirs], abs=1e-4
        )
        assert all(
            entity["word"] == text[entity["start"] : entity["end"]] for entity in found if "entity_group" in entity
        )


def test_taggers_of_train_equal_transformers_without_bio(toy_pair: Pair) -> None:
    """`train` turns `bio` on for BIO labels, which the pipeline does not have."""
    texts = [text for text in toy_pair.texts if not heuristic_errs(toy_pair.tokenizer, text)]
    expected = [list(map(comparable, found)) for found in toy_pair.pipeline(texts, aggregation_strategy="first")]
    trained = toy_pair.model.with_options(aggregation="first", bio=True)
    assert [list(map(comparable, answer.to_dict())) for answer in trained(texts)] != expected
    plain = trained.with_options(bio=False)
    assert [list(map(comparable, answer.to_dict())) for answer in plain(texts)] == expected


def comparable(entity: dict[str, Any]) -> tuple[Any, ...]:
    """Return what must be equal; not the word, which transformers shows differently for unknown tokens."""
    label = entity.get("entity", entity.get("entity_group"))
    return label, entity["start"], entity["end"], entity.get("index")


def test_without_aggregation_words_are_tokens(pair: Pair) -> None:
    """As in transformers, except for unknown tokens, for which transformers shows the text."""
    answers = pair.model.with_options(aggregation="none")(pair.texts)
    for answer, theirs in zip(answers, pair.pipeline(pair.texts, aggregation_strategy="none"), strict=True):
        for found, entity in zip(answer.to_dict(), theirs, strict=True):
            assert found["word"] in (entity["word"], "[UNK]")


def test_random_model_predicts_every_label(pair: Pair) -> None:
    """Otherwise the comparisons would prove little."""
    found = [
        entity.label for answer in pair.model.with_options(aggregation="none")(pair.texts) for entity in answer.entities
    ]
    assert min(found.count(label) for label in LABELS[1:]) > 0.01 * len(found)
    tokens = sum(len(answer.tokens.strings) for answer in pair.model(pair.texts))
    assert len(found) < tokens


@pytest.mark.parametrize("aggregation", ["none", "simple", "max"])
@pytest.mark.parametrize("max_tokens", [16, 21, 64])
def test_batch_single_and_stream_agree(toy_pair: Pair, max_tokens: int, aggregation: str) -> None:
    """On texts of all lengths around the windows' boundaries."""
    ours = toy_pair.model
    model = with_runner(ours.session, ours.task, toy_pair.tokenizer._tokenizer, max_tokens)
    texts = [text_of(length) for length in (*range(60), 200)]
    check_agreement(model.with_options(aggregation=aggregation), texts)


@pytest.mark.parametrize("aggregation", ["first", "average", "max"])
def test_words_are_those_of_the_tokenizer(pair: Pair, aggregation: str) -> None:
    """The token for a word with a soft hyphen is shorter than its text, so transformers merges two words."""
    text = "the bo\u00adok"
    assert heuristic_errs(pair.tokenizer, text)
    tagged = with_runner(Agreeing(), TAGS, pair.tokenizer._tokenizer, 64).with_options(aggregation=aggregation)
    assert [(entity.start, entity.end) for entity in tagged(text).entities] == [(0, 3), (4, 9)]
    expected = pair.pipeline(text, aggregation_strategy=aggregation)
    assert all((entity["start"], entity["end"]) == (0, 9) for entity in expected)


class Agreeing(RandomRunner):
    """A session that labels every token B-PER."""

    def __init__(self) -> None:
        super().__init__(5)

    def values(self, ids: Sequence[int]) -> Any:
        return np.tile(np.array([0, 5, 0, 0, 0], dtype=np.float32), (len(ids), 1))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_text_without_tokens_has_no_entities(aggregation: str, toy_vocab: Path) -> None:
    for bio in (False, True):
        model = random_model(replace(TAGS, aggregation=aggregation, bio=bio), toy_vocab, 16, 5)
        assert [model(text).to_dict() for text in ("", " ", "\x00")] == [[], [], []]


def test_entities_by_hand(toy_vocab: Path) -> None:
    """A word of three tokens, of which the first, the mean and the most probable give different labels."""
    chances = np.array([[0.5, 0.1, 0.0, 0.3, 0.1], [0.2, 0.4, 0.0, 0.3, 0.1], [0.0, 0.0, 0.0, 0.1, 0.9]])
    model = with_runner(Scripted(np.log(chances + 1e-9)), TAGS, wordpiece(toy_vocab), 16)

    def found(aggregation: str) -> list[tuple[str, str, float]]:
        entities = model.with_options(aggregation=aggregation)("xyz").entities
        return [(entity.label, entity.text, round(entity.score, 3)) for entity in entities]

    assert found("none") == [("B-PER", "y", 0.4), ("I-LOC", "z", 0.9)]
    assert found("simple") == [("PER", "y", 0.4), ("LOC", "z", 0.9)]
    assert found("first") == []
    assert found("average") == [("LOC", "xyz", 0.367)]
    assert found("max") == [("LOC", "xyz", 0.9)]


@pytest.mark.parametrize(
    ("labels", "kinds"),
    [
        (("B-PER", "I-PER", "O", "I-PER", "B-LOC"), [("PER", 0, 2), ("PER", 3, 4), ("LOC", 4, 5)]),
        (("B-PER", "B-PER", "I-LOC", "I-LOC", "I-PER"), [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 4), ("PER", 4, 5)]),
        (("O", "O", "O", "O", "O"), []),
    ],
)
def test_neighbours_of_one_type_are_merged(labels: tuple[str, ...], kinds: list[Any], toy_vocab: Path) -> None:
    logits = 5 * np.eye(5)[[LABELS.index(label) for label in labels]]
    model = with_runner(Scripted(logits), TAGS, wordpiece(toy_vocab), 16)
    text = "a b c d e"
    expected = [(kind, text[2 * first : 2 * after - 1], 2 * first, 2 * after - 1) for kind, first, after in kinds]
    for aggregation in AGGREGATIONS[1:]:
        found = model.with_options(aggregation=aggregation)(text).entities
        assert [(entity.label, entity.text, entity.start, entity.end) for entity in found] == expected


def test_names_of_groups_are_those_of_the_pipeline_for_other_prefixes(toy_vocab: Path) -> None:
    task = TokenClassification(labels=("U-LOC", "L-PER", "O"))
    model = with_runner(Scripted(5 * np.eye(3)[[0, 2, 1]]), task, wordpiece(toy_vocab), 16)
    assert [entity.label for entity in model("a b c").entities] == ["LOC", "PER"]
    assert [entity.label for entity in model.with_options(aggregation="none")("a b c").entities] == ["U-LOC", "L-PER"]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_entities_begin_with_a_character_that_can_be_seen(aggregation: str) -> None:
    """As DeBERTa's tokenizer, this one has the space before a word in the word's token."""
    tokenizer = Tokenizer(WordLevel({"<unk>": 0, "▁go": 1, "▁to": 2, "▁Paris": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Metaspace()
    encoding = tokenizer.encode("go to Paris")
    assert encoding.offsets[-1] == (5, 11)
    task = TokenClassification(labels=("O", "LOC"), aggregation=aggregation)
    outputs = Outputs(TextInput("go to Paris"), (encoding,), (5 * np.eye(2)[[0, 0, 1]],), NoVocabulary())
    (entity,) = task.decode(outputs).entities  # type: ignore[attr-defined]
    assert (entity.text, entity.start, entity.end) == ("Paris", 6, 11)


def test_labels_without_bio_prefixes_are_entity_types(toy_vocab: Path) -> None:
    task = TokenClassification(labels=("NOUN", "VERB", "O"))
    model = with_runner(Scripted(5 * np.eye(3)[[0, 0, 1, 2, 1]]), task, wordpiece(toy_vocab), 16)
    assert [(entity.label, entity.text) for entity in model("a b c d e").entities] == [
        ("NOUN", "a b"),
        ("VERB", "c"),
        ("VERB", "e"),
    ]


def test_json_has_the_keys_of_the_pipeline(toy_vocab: Path) -> None:
    model = with_runner(Scripted(5 * np.eye(5)[[0, 1, 2]]), TAGS, wordpiece(toy_vocab), 16)
    score = pytest.approx(float(np.exp(5) / (np.exp(5) + 4)))
    assert model("a xy").to_dict() == [{"entity_group": "PER", "score": score, "word": "xy", "start": 2, "end": 4}]
    assert model.with_options(aggregation="none")("a xy").to_dict() == [
        {"entity": "B-PER", "score": score, "index": 2, "word": "x", "start": 2, "end": 3},
        {"entity": "I-PER", "score": score, "index": 3, "word": "##y", "start": 3, "end": 4},
    ]


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
def test_invalid_options_are_refused(options: dict[str, Any], message: str, toy_vocab: Path) -> None:
    with pytest.raises(InputError, match=message):
        random_model(TAGS, toy_vocab, 16, 5).with_options(**options)


def test_bio_needs_bio_labels(toy_vocab: Path) -> None:
    model = random_model(TokenClassification(labels=("NOUN", "VERB")), toy_vocab, 16, 2)
    with pytest.raises(InputError, match="bio"):
        model.with_options(bio=True)


def test_with_options_does_not_change_the_original_model(toy_vocab: Path) -> None:
    model = random_model(TAGS, toy_vocab, 16, 5)
    before = model(TEXTS[0]).to_dict()
    other = model.with_options(aggregation="none", bio=True)
    assert other.session is model.session
    assert other.tokenizer is model.tokenizer
    assert other(TEXTS[0]).to_dict() != before
    assert model.task is TAGS
    assert model(TEXTS[0]).to_dict() == before
