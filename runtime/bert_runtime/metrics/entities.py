"""Entities in tag sequences and their exact-span F1, as in the CoNLL shared tasks."""

from collections.abc import Sequence

__all__ = ["entity_f1", "entity_spans", "mark_entities"]

_PREFIXES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}
"""Prefixes of tags, and those of BIOES that mean the same: BILOU calls an entity's last token L, and a single one U."""


def mark_entities(labels: Sequence[str]) -> bool:
    """Return whether labels are tags of entities, as `entity_spans` reads them: `O`, or a prefix and a type."""
    return all(label == "O" or (label[:1] in _PREFIXES and label[1:2] == "-" and len(label) > 2) for label in labels)


def entity_spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Find the entities in the tags of one text.

    Chunk boundaries are those of conlleval, the script of the CoNLL-2000 shared task, extended to BIOES (IOBES) as in
    seqeval's default mode: every token but an `O` is in an entity, and an `I-` or `E-` that does not continue an entity
    of its type starts one. BILOU's `L-` and `U-` are `E-` and `S-`. A bare prefix has the type `_`.

    Args:
        tags: a tag for each token: `O`, or a type with the prefix `B-`, `I-`, `E-`, `S-`, `L-` or `U-`.

    Returns:
        Type, index of the first token and index after the last token of each entity, in order.

    Raises:
        ValueError: a tag has another prefix.
    """
    spans: list[tuple[str, int, int]] = []
    is_open = False  # whether the next token may continue the last span
    for position, tag in enumerate(tags):
        if tag == "O":
            is_open = False
            continue
        prefix, _, kind = tag.partition("-")
        kind = kind or "_"
        if prefix not in _PREFIXES:
            expected = ", ".join(f"{known}-" for known in _PREFIXES)
            raise ValueError(f"expected O or a tag that starts with one of {expected}, found {tag!r} at {position}")
        prefix = _PREFIXES[prefix]
        if is_open and prefix in ("I", "E") and spans[-1][0] == kind:
            spans[-1] = (kind, spans[-1][1], position + 1)
        else:
            spans.append((kind, position, position + 1))
        is_open = prefix in ("B", "I")
    return spans


def entity_f1(predicted: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> dict[str, float]:
    """Compute micro-averaged precision, recall and F1 of entities.

    An entity counts as found if its type and both ends are right (conlleval, seqeval's default mode).

    Args:
        predicted: for each of N texts the predicted tags, one per token.
        expected: for each text the gold tags.

    Returns:
        `precision`, `recall` and `f1` in [0, 1]; 0 where undefined.

    Raises:
        ValueError: the number of texts or of a text's tags differs, or a tag has an unknown prefix.
    """
    if len(predicted) != len(expected):
        raise ValueError(f"expected the tags of {len(expected)} texts, found those of {len(predicted)}")
    hits = num_predicted = num_expected = 0
    for index, (found, wanted) in enumerate(zip(predicted, expected, strict=True)):
        if len(found) != len(wanted):
            raise ValueError(f"text {index}: expected {len(wanted)} predicted tags, one per token, found {len(found)}")
        found_spans, wanted_spans = set(entity_spans(found)), set(entity_spans(wanted))
        hits += len(found_spans & wanted_spans)
        num_predicted += len(found_spans)
        num_expected += len(wanted_spans)
    total = num_predicted + num_expected
    return {
        "precision": hits / num_predicted if num_predicted else 0.0,
        "recall": hits / num_expected if num_expected else 0.0,
        "f1": 2 * hits / total if total else 0.0,
    }
