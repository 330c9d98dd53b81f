"""The manifest of a cascade: the `bundle.json` of a folder with two whole bundles.

    cascade/
    ├── bundle.json     format version 2, and the key `cascade`
    ├── small/          the bundle of the small model
    └── large/          the bundle of the large one

Format version 2 is that of cascades alone: releases that know single models refuse it, and ask for a newer release.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_runtime.bundle.digest import DIGEST_KEY, manifest_digest
from bert_runtime.bundle.manifest import MANIFEST_NAME, sha256_file
from bert_runtime.bundle.manifest_text import CASCADE_FORMAT_VERSION, CASCADE_KEY, parse_manifest_text
from bert_runtime.bundle.schema import from_plain, to_json, to_plain
from bert_runtime.cascade.task import MODELS
from bert_runtime.errors import BundleError

__all__ = ["CascadeManifest", "Part", "is_cascade"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A bundle of the cascade."""

    folder: str
    """Its folder, `small` or `large`."""
    sha256: str
    """SHA-256 of its `bundle.json`, which has those of all its files."""


@dataclass(frozen=True, kw_only=True)
class CascadeManifest:
    """The contents of a cascade's `bundle.json`."""

    threshold: float
    """Least confidence of the small model with which its answer counts, in [0, 1]; see `task.confidence`."""
    parts: tuple[Part, ...]
    """The small bundle and the large one."""
    metric: str
    """The task metric that the gate compares."""
    max_drop_percent: float
    """The gate: how much of the large model's metric the cascade may lose, in percent."""
    chosen_on: Mapping[str, Any]
    """Rows that the threshold was chosen on, and the measurements there."""
    judged_on: Mapping[str, Any]
    """The gate: metrics of rows that are each judged by a threshold chosen without it, drop with its paired 95 %
    interval, share of the small model, number of folds, and how many of them found no threshold within the limit: their
    rows judge nothing."""
    calibration: Mapping[str, Any] = field(default_factory=dict)
    """For each model, the calibration of its probabilities; empty for several labels."""
    latency_ms: Mapping[str, Any] = field(default_factory=dict)
    """Milliseconds per text, one at a time, of each model and of the cascade: `mean`, `p50`, `p99` and `max`."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """The machine that latencies were measured on."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the tools that made the cascade."""

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON values, with its digest."""
        values = {"format_version": CASCADE_FORMAT_VERSION, CASCADE_KEY: to_plain(self)}
        return values | {DIGEST_KEY: manifest_digest(values)}

    def to_json(self) -> str:
        """Return the text of `bundle.json`."""
        return to_json(self.to_dict())

    @classmethod
    def read(cls, bundle: Path, *, verify: bool = True) -> "CascadeManifest":
        """Read the manifest of a cascade, and compare it with its digest and the parts with their hashes if `verify`.

        Raises:
            BundleError: the folder is not a cascade, or damaged.
            NewerFormatError: a later release wrote it.
        """
        path = bundle / MANIFEST_NAME
        try:
            values = parse_manifest_text(path.read_text(encoding="utf-8"), verify=verify, cascade=True)
            manifest = from_plain(cls, values.get(CASCADE_KEY), CASCADE_KEY)
            manifest.check()
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{path}: cannot be read: {error}") from None
        except BundleError as error:
            raise type(error)(f"{path}: {error}") from None
        if verify:
            for part in manifest.parts:
                check_part(bundle, part)
        return manifest

    def check(self) -> None:
        """Raise `BundleError` for values that no cascade has."""
        if tuple(part.folder for part in self.parts) != MODELS:
            raise BundleError(f"cascade.parts: expected the folders {' and '.join(MODELS)}, found {self.parts!r:.100}")
        if not 0 <= self.threshold <= 1:
            raise BundleError(f"cascade.threshold: expected a number of 0 to 1, found {self.threshold!r:.50}")


def check_part(bundle: Path, part: Part) -> None:
    """Raise `BundleError` where the manifest of a part is missing or another one than the cascade was judged with."""
    path = bundle / part.folder / MANIFEST_NAME
    try:
        found = sha256_file(path)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror or error}; copy the cascade again") from None
    if found != part.sha256:
        raise BundleError(
            f"{path}: expected SHA-256 {part.sha256}, found {found}: the cascade was judged with another bundle; "
            "copy it again, or make a new one with bert-export cascade"
        )


def is_cascade(bundle: Path) -> bool:
    """Return whether a folder holds the manifest of a cascade; what it says may be damaged."""
    try:
        parse_manifest_text((bundle / MANIFEST_NAME).read_text(encoding="utf-8"), verify=False, cascade=True)
    except (OSError, UnicodeDecodeError, BundleError):
        return False
    return True
