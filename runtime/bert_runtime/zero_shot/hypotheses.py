"""Candidate labels, and the hypotheses that are made of them."""

from collections import Counter
from collections.abc import Sequence
from string import Formatter

from bert_runtime.errors import InputError

__all__ = ["DEFAULT_TEMPLATE", "make_hypotheses", "read_labels"]

DEFAULT_TEMPLATE = "This example is {}."
"""The hypothesis of a label, as in the pipeline of transformers."""


def read_labels(labels: str | Sequence[str]) -> tuple[str, ...]:
    """Return labels that a caller passed: a list, or one text with commas between them.

    Raises:
        InputError: there are none, one is blank or no text, or two are equal.
    """
    if isinstance(labels, str):
        labels = [label.strip() for label in labels.split(",") if label.strip()]
    if not isinstance(labels, Sequence):
        raise InputError(f"expected candidate labels as a list of texts, found {type(labels).__name__}")
    if not labels:
        raise InputError("expected at least one candidate label, found none")
    for index, label in enumerate(labels):
        if not isinstance(label, str) or not label.strip():
            raise InputError(f"candidate label {index}: expected a text that is not blank, found {label!r:.50}")
    if repeated := [label for label, count in Counter(labels).items() if count > 1]:
        raise InputError(f"candidate labels must be distinct, found more than once: {', '.join(repeated):.100}")
    return tuple(labels)


def make_hypotheses(labels: Sequence[str], template: str) -> list[str]:
    """Return the template with each label in the place of `{}`.

    Only `{}` and `{0}` are fields, without a format: templates come from clients of servers, too, and a width such as
    in `{:>999999999}` fills the memory. `{{` and `}}` stand for braces.

    Raises:
        InputError: the template has no field, another one, or a single brace.
    """
    advice = "expected {} where the label goes, such as 'This example is {}.'"
    if not isinstance(template, str):
        raise InputError(f"hypothesis template: {advice}, found {type(template).__name__}")
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"hypothesis template {template!r:.100}: {advice}; {error}") from None
    fields = [(name, spec, conversion) for _, name, spec, conversion in parts if name is not None]
    if not fields or any(name not in ("", "0") or spec or conversion for name, spec, conversion in fields):
        raise InputError(f"hypothesis template {template!r:.100}: {advice}, and no other braces than {{{{ and }}}}")
    return ["".join(text + ("" if name is None else label) for text, name, _, _ in parts) for label in labels]
