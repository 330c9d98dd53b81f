"""The text of `bundle.json` as JSON values: format version, nesting and digest are checked here."""

import json
from typing import Any

from bert_runtime.bundle.digest import check_digest
from bert_runtime.errors import BundleError, CascadeBundleError, NewerFormatError

__all__ = ["CASCADE_FORMAT_VERSION", "CASCADE_KEY", "FORMAT_VERSION", "parse_manifest_text"]

FORMAT_VERSION = 1
"""The format version of bundles of one model that this release writes, and the newest that it reads."""

CASCADE_FORMAT_VERSION = 2
"""The format version of cascades, so that releases without them ask for a newer one."""

CASCADE_KEY = "cascade"
"""Top-level key of a cascade's manifest."""

_MAX_DEPTH = 50
"""Nested objects and lists that are read; a manifest has 6. Functions that walk the values call themselves."""


def parse_manifest_text(text: str, *, verify: bool = True, cascade: bool = False) -> dict[str, Any]:
    """Return the JSON object of a manifest.

    Args:
        text: the text of `bundle.json`.
        verify: whether to compare the values with the manifest's digest.
        cascade: whether a cascade's manifest is expected, instead of that of one model.

    Raises:
        BundleError: the text is not JSON of a known format version, or its digest is another.
        CascadeBundleError: it is a cascade's, and that of one model was expected.
        NewerFormatError: a later release wrote it.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise BundleError(f"expected a JSON object, found {type(values).__name__}")
    version = values.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BundleError(f"format_version: expected a whole number from 1, found {version!r:.80}")
    _check_version(version, is_cascade=CASCADE_KEY in values, cascade=cascade)
    _check_depth(values)
    if verify:
        check_digest(values)
    return values


def _check_version(version: int, *, is_cascade: bool, cascade: bool) -> None:
    """Raise `BundleError` for a manifest of another kind or of a later release."""
    newest = CASCADE_FORMAT_VERSION if is_cascade else FORMAT_VERSION
    if version > newest:
        raise NewerFormatError(
            f"the bundle has format version {version}, this release reads up to {newest}; install a newer bert-export"
        )
    if is_cascade and not cascade:
        raise CascadeBundleError(
            "expected the bundle of one model, found a cascade of two, which this does not take; name its folder small "
            "or large to use one of them"
        )
    if cascade and not is_cascade:
        raise BundleError(f"expected a cascade (the key {CASCADE_KEY}), found the bundle of one model")


def _check_depth(values: dict[str, Any]) -> None:
    """Raise `BundleError` for values that are nested deeper than any manifest's."""
    level: list[Any] = [values]
    for _ in range(_MAX_DEPTH):
        parts = [item.values() if isinstance(item, dict) else item for item in level]
        level = [value for part in parts for value in part if isinstance(value, dict | list)]
        if not level:
            return
    raise BundleError(f"expected at most {_MAX_DEPTH} nested objects and lists, found more")
