"""Entity spans and their F1, by hand and compared with conlleval's boundary rules and seqeval."""

from itertools import pairwise

import numpy as np
import pytest

from bert_runtime.metrics import entity_f1, entity_spans, mark_entities

BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
BIOES = [*BIO, "E-PER", "S-PER", "E-LOC", "S-LOC"]
SCHEMES = pytest.mark.parametrize(
    "vocabulary", [BIO, BIOES, [*BIOES, "B", "I", "E", "S"]], ids=["BIO", "BIOES", "bare"]
)


def random_texts(seed: int, vocabulary: list[str], count: int = 200) -> list[list[str]]:
    generator = np.random.default_rng(seed)
    return [generator.choice(vocabulary, size=length).tolist() for length in generator.integers(0, 12, count)]


def spans_by_boundaries(tags: list[str]) -> list[tuple[str, int, int]]:
    """Find the entities from tables of prefix pairs between which an entity ends or starts."""
    split = [(tag[0], tag[2:] or "_") for tag in ["O", *tags, "O"]]
    spans, start = [], 0
    for position, ((before, old), (after, new)) in enumerate(pairwise(split)):
        same = old == new
        if before != "O" and (before + after in {"BB", "BS", "BO", "IB", "IS", "IO"} or before in "ES" or not same):
            spans.append((old, start, position))
        if after != "O" and (after in "BS" or before + after in {"EE", "EI", "SE", "SI", "OE", "OI"} or not same):
            start = position
    return spans


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("", []),
        ("O O", []),
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("B-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("I-PER I-PER O I-PER", [("PER", 0, 2), ("PER", 3, 4)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("I-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("B-LOC I-PER I-LOC", [("LOC", 0, 1), ("PER", 1, 2), ("LOC", 2, 3)]),
        ("B-PER I-PER E-PER S-PER O E-LOC", [("PER", 0, 3), ("PER", 3, 4), ("LOC", 5, 6)]),
        ("B-PER E-PER I-PER S-PER I-PER", [("PER", 0, 2), ("PER", 2, 3), ("PER", 3, 4), ("PER", 4, 5)]),
        ("E-PER E-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-work-of-art I-work-of-art", [("work-of-art", 0, 2)]),
        ("B I O I", [("_", 0, 2), ("_", 3, 4)]),
    ],
)
def test_spans_by_hand(tags: str, spans: list[tuple[str, int, int]]) -> None:
    assert entity_spans(tags.split()) == spans
    assert spans_by_boundaries(tags.split()) == spans


@SCHEMES
@pytest.mark.parametrize("seed", range(3))
def test_spans_follow_the_boundary_rules_of_conlleval(seed: int, vocabulary: list[str]) -> None:
    for tags in random_texts(seed, vocabulary):
        assert entity_spans(tags) == spans_by_boundaries(tags)


@SCHEMES
@pytest.mark.parametrize("seed", range(3))
def test_spans_cover_every_tagged_token_once(seed: int, vocabulary: list[str]) -> None:
    for tags in random_texts(seed, vocabulary):
        covered = [position for _, first, end in entity_spans(tags) for position in range(first, end)]
        assert covered == [position for position, tag in enumerate(tags) if tag != "O"]


@SCHEMES
@pytest.mark.parametrize("seed", range(3))
def test_spans_and_f1_match_seqeval(seed: int, vocabulary: list[str]) -> None:
    sequence_labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    predicted = random_texts(seed, vocabulary)
    generator = np.random.default_rng(seed)
    expected = [[tag if generator.random() < 0.8 else "O" for tag in tags] for tags in predicted]
    for tags in predicted:
        inclusive = sequence_labeling.get_entities(tags)
        assert entity_spans(tags) == [(kind, first, last + 1) for kind, first, last in inclusive]
    precision, recall, f1, _ = sequence_labeling.precision_recall_fscore_support(expected, predicted, average="micro")
    assert 0 < f1 < 1
    assert entity_f1(predicted, expected) == pytest.approx({"precision": precision, "recall": recall, "f1": f1})


def test_bilou_is_bioes_with_other_letters() -> None:
    tags = ["B-PER", "I-PER", "L-PER", "U-PER", "O", "L-LOC", "U-LOC", "U-LOC"]
    bioes = [tag.replace("L-", "E-").replace("U-", "S-") for tag in tags]
    assert entity_spans(tags) == entity_spans(bioes) == spans_by_boundaries(bioes)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["O", "B-PER", "I-PER"], True),
        (["O", "I-PER"], True),
        (BIOES, True),
        (["O", "B-PER", "L-PER", "U-PER"], True),
        (["NOUN", "VERB"], False),
        (["O", "B-PER", "PER"], False),
        (["O", "B", "I"], False),
        (["O", "B-"], False),
        (["O", "X-PER"], False),
    ],
)
def test_labels_that_mark_entities(labels: list[str], expected: bool) -> None:
    assert mark_entities(labels) is expected
    if expected:
        entity_spans(labels)


@pytest.mark.parametrize("tag", ["PER", "NOUN", "b-PER", "BPER", "X-PER", "O-PER", "-PER", ""])
def test_unknown_tag_prefix_is_an_error(tag: str) -> None:
    with pytest.raises(ValueError, match=f"found '{tag}' at 1"):
        entity_spans(["O", tag])


def test_entity_f1_by_hand() -> None:
    """Two of three predicted entities are among the four expected: one has the wrong end, one is in another text."""
    predicted = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"], ["O"]]
    expected = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "I-LOC"], ["B-PER"]]
    assert entity_f1(predicted, expected) == pytest.approx({"precision": 2 / 3, "recall": 2 / 4, "f1": 4 / 7})


def test_entities_match_only_with_equal_type_and_text() -> None:
    assert entity_f1([["B-PER"], ["O"]], [["B-LOC"], ["B-PER"]])["f1"] == 0


def test_entities_end_with_their_text() -> None:
    texts = [["B-PER"], ["I-PER"]]
    assert entity_f1(texts, texts) == {"precision": 1, "recall": 1, "f1": 1}
    assert entity_f1(texts, [["B-PER"], ["B-PER"]])["f1"] == 1


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [([], []), ([["O"]], [["O"]]), ([["B-PER"]], [["O"]]), ([["O"]], [["B-PER"]])],
    ids=["no text", "no entity", "none expected", "none predicted"],
)
def test_undefined_entity_f1_is_zero(predicted: list[list[str]], expected: list[list[str]]) -> None:
    assert entity_f1(predicted, expected) == {"precision": 0, "recall": 0, "f1": 0}


def test_entity_f1_needs_equal_lengths() -> None:
    with pytest.raises(ValueError, match=r"text 1: expected 2 predicted tags.*found 1"):
        entity_f1([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(ValueError, match=r"tags of 2 texts, found those of 1"):
        entity_f1([["O"]], [["O"], ["O"]])
