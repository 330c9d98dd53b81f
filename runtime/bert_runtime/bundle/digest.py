"""The manifest's digest of itself: finds accidental changes, such as a flipped letter in a label.

It is no signature: whoever changes the manifest on purpose can compute the digest again, or remove it.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from bert_runtime.errors import BundleError

__all__ = ["DIGEST_KEY", "check_digest", "manifest_digest"]

DIGEST_KEY = "manifest_sha256"
"""Top-level key of the digest; bundles of previews before 0.1.0 lack it."""

_TIMED_KEYS = frozenset({"default_reason", "latency_ms"})
"""Keys whose values differ between exports of one checkpoint on one machine, since they hold timings."""


def manifest_digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest's JSON values, without the digest itself and the timings, in hexadecimal.

    It is that of the UTF-8 text with sorted keys, no spaces, and numbers as Python writes them, so that neither the
    order of keys nor indentation matters.

    Args:
        values: the object of `bundle.json`.
    """
    kept = _without(values, _TIMED_KEYS | {DIGEST_KEY})
    if isinstance(variants := kept.get("variants"), list):
        kept["variants"] = [_without(item, _TIMED_KEYS) if isinstance(item, Mapping) else item for item in variants]
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_digest(values: Mapping[str, Any]) -> None:
    """Raise `BundleError` where a manifest has another digest than its values; one without a digest passes."""
    recorded = values.get(DIGEST_KEY)
    if DIGEST_KEY in values and recorded != (found := manifest_digest(values)):
        raise BundleError(
            f"expected values of {DIGEST_KEY} {recorded!r:.80}, found {found}: the manifest was changed or damaged; "
            f"copy the bundle again, or, if you changed it on purpose, put {found} there"
        )


def _without(values: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}
