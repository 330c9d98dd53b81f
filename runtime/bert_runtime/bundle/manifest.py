"""The bundle's manifest: `bundle.json`, the only index of a bundle's files.

A bundle is a directory with `bundle.json`, `tokenizer.json` and one `model.<precision>.onnx` per variant. Format
version 1 is specified in docs/reference/bundle-format.md; a golden file in the tests pins it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bert_runtime.bundle.digest import DIGEST_KEY, manifest_digest
from bert_runtime.bundle.entries import (
    MASKED,
    PACKED,
    PADDING_MODES,
    PRECISIONS,
    UNMASKED,
    Asset,
    AttentionGraph,
    SelfTest,
    TensorSpec,
    Variant,
)
from bert_runtime.bundle.manifest_text import FORMAT_VERSION, parse_manifest_text
from bert_runtime.bundle.schema import from_plain, to_json, to_plain
from bert_runtime.errors import BundleError
from bert_runtime.tasks import Task

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "MASKED",
    "PACKED",
    "PADDING_MODES",
    "PRECISIONS",
    "UNMASKED",
    "Asset",
    "AttentionGraph",
    "Manifest",
    "SelfTest",
    "TensorSpec",
    "Variant",
    "sha256_file",
]

MANIFEST_NAME = "bundle.json"

MIN_TOKENS = 3
"""Smallest `Manifest.max_tokens`: one token and the special tokens around it. Pairs may need more, which
reading the tokenizer finds."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of `bundle.json`: everything a runtime needs to know before it opens a graph."""

    task: Task
    max_tokens: int
    """Longest sequence in tokens, special tokens included. Longer inputs are truncated on the side that
    `tokenizer.json` names, by default the right; tasks with `Task.windows` read them in overlapping windows instead."""

    pad_token_id: int
    tokenizer: Asset
    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    variants: tuple[Variant, ...]
    default_precision: str
    default_reason: str = ""
    """The reason for `default_precision`, with its measurements."""

    self_test_inputs: tuple[Any, ...]
    """Inputs of the self-tests, a text or a pair of texts each."""

    attention: AttentionGraph | None = None
    """The graph that also gives attention probabilities; `None`, and absent from the JSON, where there is none."""

    source: Mapping[str, Any] = field(default_factory=dict)
    """The checkpoint that was exported: family, SHA-256 of its weights, path."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the tools that made the bundle."""

    machine: Mapping[str, Any] = field(default_factory=dict)
    """The machine that latencies were measured on."""

    extra: Mapping[str, Any] = field(default_factory=dict)
    """Top-level keys that this release does not know; kept when the manifest is written again."""

    def __repr__(self) -> str:
        variants = ", ".join(variant.title for variant in self.variants)
        return f"Manifest({self.task.name}, max_tokens={self.max_tokens}, variants: {variants})"

    @property
    def id_limits(self) -> dict[str, int]:
        """Exclusive maximum of each input's values, for the inputs that have one."""
        return {spec.name: spec.exclusive_max for spec in self.inputs if spec.exclusive_max is not None}

    def variant(self, precision: str, target: str = "cpu") -> Variant:
        """Return the masked variant of a precision and target; for other padding modes see `padding_variants`.

        Raises:
            BundleError: there is none; the message names those that the target has.
        """
        found = self.variants_for(target)
        for variant in found:
            if variant.precision == precision:
                return variant
        device = "" if target == "cpu" else f" for {target}"
        raise BundleError(
            f"the bundle has no variant {precision!r}{device}; it has {', '.join(v.precision for v in found) or 'none'}"
        )

    def variants_for(self, target: str) -> tuple[Variant, ...]:
        """Return the masked variants for a kind of device."""
        return tuple(variant for variant in self.variants if variant.target == target and variant.padding == MASKED)

    def padding_variants(self, variant: Variant) -> dict[str, Variant]:
        """Return the variants of the same precision and target that have another padding mode, by mode."""
        key = (variant.precision, variant.target)
        return {
            other.padding: other
            for other in self.variants
            if (other.precision, other.target) == key and other.padding != variant.padding
        }

    @property
    def assets(self) -> tuple[Asset, ...]:
        """Every file of the bundle except the manifest, once each."""
        attention = () if self.attention is None else self.attention.assets
        graphs = (asset for variant in self.variants for asset in variant.assets)
        return tuple(dict.fromkeys((self.tokenizer, *graphs, *attention)))

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON values, with its digest."""
        values = {"format_version": FORMAT_VERSION, **to_plain(self)}
        values |= values.pop("extra")
        if self.attention is None:
            del values["attention"]
        return values | {DIGEST_KEY: manifest_digest(values)}

    def to_json(self) -> str:
        """Return the text of `bundle.json`."""
        return to_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str, *, verify: bool = True) -> "Manifest":
        """Parse the text of `bundle.json`, and compare it with its own digest if `verify`.

        Raises:
            BundleError: the text is not JSON, a key is missing or has a wrong value, or the digest is another.
            NewerFormatError: a later release wrote it.
        """
        values = parse_manifest_text(text, verify=verify)
        del values["format_version"]
        values.pop(DIGEST_KEY, None)
        known = {item.name for item in fields(cls)} - {"extra"}
        values["extra"] = {key: values.pop(key) for key in list(values) if key not in known}
        manifest = from_plain(cls, values)
        manifest.variant(manifest.default_precision)
        if manifest.max_tokens < MIN_TOKENS:
            raise BundleError(f"max_tokens: expected at least {MIN_TOKENS}, found {manifest.max_tokens}")
        width = manifest.task.output_width
        if width is not None and manifest.output.axes[-1:] != (width,):
            raise BundleError(
                f"output.axes: expected a last axis of {width}, as many as the labels or dimensions of the task "
                f"{manifest.task.name}, found {list(manifest.output.axes)}"
            )
        return manifest

    @classmethod
    def read(cls, bundle: Path, *, verify: bool = True) -> "Manifest":
        """Read the manifest of the bundle in a directory; see `from_json`.

        Raises:
            BundleError: the directory is not a bundle, or its manifest is damaged.
            NewerFormatError: a later release wrote it.
        """
        path = bundle / MANIFEST_NAME
        try:
            text = path.read_text(encoding="utf-8") if path.is_file() else None
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if text is None:
            found = "a file" if bundle.is_file() else "no such directory" if not bundle.exists() else "none"
            raise BundleError(
                f"{bundle}: expected a bundle (a directory with {MANIFEST_NAME}), found {found}; "
                f"make one with: bert-export export CHECKPOINT BUNDLE{_how_to_pull(bundle)}"
            )
        try:
            return cls.from_json(text, verify=verify)
        except BundleError as error:
            raise type(error)(f"{path}: {error}") from None


def _how_to_pull(bundle: Path) -> str:
    """Return the command that downloads a bundle where a path may be meant as a hub id, and does not exist."""
    from bert_runtime.hub.access import HUB_ID  # whose package reads manifests

    name = str(bundle)
    if bundle.exists() or "/" not in name or HUB_ID.fullmatch(name) is None:
        return ""
    return f", or get one from the hub with: bert-export pull {name} BUNDLE"


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's contents in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
