"""Strategies for damaged files, and the property that they are checked by."""

import copy
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from bert_runtime.errors import BertError

MAX_SECONDS = 10.0
"""For one example, on a machine that is busy with something else."""

_NASTY = (
    *("", "\0", "..", "../../x", "x" * 5000, "\ud800", "1e999", "[PAD]", "[UNK]", "##a", "true"),
    *(-1, 0, 1, 2**31, 2**32, 2**63, 10**9, 10**400, -0.0, 1e308, float("nan"), float("inf"), True, None),
)

JSON_VALUES = st.recursive(
    st.sampled_from(_NASTY) | st.integers() | st.floats() | st.text(max_size=5) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
"""Small JSON values, many of them where no program expects them."""


def raises_only_typed_errors(function: Callable[[], object]) -> None:
    """Assert that `function` returns, or raises an error of this project, soon."""
    start = time.monotonic()
    try:
        function()
    except BertError as error:
        if not str(error).strip():
            raise AssertionError("an error without a message") from error
    seconds = time.monotonic() - start
    assert seconds < MAX_SECONDS, f"{seconds:.1f} s"


@st.composite
def mutated_json(draw: st.DrawFn, document: Any) -> Any:
    """Return `document` with one to three values replaced, removed, repeated or renamed."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        if not places:
            return draw(JSON_VALUES)
        parent, key = draw(st.sampled_from(places))
        action = draw(st.sampled_from(("replace", "replace", "remove", "repeat", "swap")))
        if action == "replace":
            parent[key] = draw(JSON_VALUES)
        elif action == "remove":
            del parent[key]
        elif action == "repeat" and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        elif action == "repeat":
            parent[draw(st.text(max_size=5))] = copy.deepcopy(parent[key])
        else:
            other, other_key = draw(st.sampled_from(places))
            parent[key] = copy.deepcopy(other[other_key])
    return document


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the container and key of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


@st.composite
def mutated_bytes(draw: st.DrawFn, contents: bytes) -> bytes:
    """Return `contents` with up to five bytes changed, cut off, or other bytes put in."""
    data = bytearray(contents)
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 20)))
        data[start:end] = draw(
            st.binary(max_size=8) | st.sampled_from((b"\0", b"\xff\xfe", b"\r", b'"', b"\xed\xa0\x80", b"[" * 2000))
        )
    return bytes(data[: draw(st.sampled_from((len(data), len(data) // 2)))])


def as_json(value: Any) -> bytes:
    """Return a JSON value as a file's contents, lone surrogates escaped."""
    return json.dumps(value).encode()
