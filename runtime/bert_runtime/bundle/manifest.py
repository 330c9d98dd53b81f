"""The bundle's manifest: `bundle.json`, the only index of what a bundle holds.

A bundle is a directory with `bundle.json`, `tokenizer.json` and one `model.<precision>.onnx` per variant. Format
version 1 is described in the README under "Bundle format"; a golden file in the tests pins it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bert_runtime.bundle.schema import from_plain, to_json, to_plain
from bert_runtime.errors import BundleError, NewerFormatError
from bert_runtime.tasks import Task

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "MASKED",
    "PACKED",
    "PADDING_MODES",
    "UNMASKED",
    "Asset",
    "Manifest",
    "SelfTest",
    "TensorSpec",
    "Variant",
    "sha256_file",
]

FORMAT_VERSION = 1
"""The format this release writes, and the newest it reads."""

MANIFEST_NAME = "bundle.json"

PADDING_MODES = (MASKED, UNMASKED, PACKED) = ("masked", "unmasked", "packed")
"""What a graph may be made of padding; see `Variant.padding`."""

MIN_TOKENS = 3
"""Room for the special tokens around one token; the tokenizer does not truncate to less."""


@dataclass(frozen=True, kw_only=True)
class Asset:
    """A file of the bundle, by its name inside the directory."""

    file: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """A graph input or output: its dtype in ONNX terms and one axis per dimension, a name where it may vary."""

    name: str
    dtype: str
    axes: tuple[str | int, ...]

    exclusive_max: int | None = field(default=None, metadata={"key": "below"})
    """Values of an input are less than this, and at least 0; `None` where the bundle does not say (key `below`)."""


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """What a variant answered to the manifest's `self_test_inputs` when the bundle was made."""

    outputs: tuple[tuple[float, ...], ...]
    """The raw outputs of each input, alone in its batch; see `bert_runtime.verification.self_test_values`."""

    tolerance: float
    """Largest absolute difference that another machine's arithmetic explains."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One graph of the bundle: precision × target, with the measurements that vouch for it."""

    precision: str
    """`fp32`, `fp16` or `int8`."""

    target: str = "cpu"
    """The kind of device the graph is made for: `cpu`, `cuda` or `tensorrt`."""

    padding: str = field(default=MASKED, metadata={"key": "form"})
    """How it takes padding: `masked` anywhere; `unmasked` none at all; `packed` at the rows' end, and computes real
    tokens alone."""

    model: Asset
    opset: int
    self_test: SelfTest

    external_data: Asset | None = None
    """The weights, where they are beside the graph; several variants may share them."""

    instruction_set: str | None = None
    """What the processor must have for the graph to be fast (`vnni`), `None` for any."""

    fusions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Per fusion, how many were `expected` and how many `found`."""

    functions: Mapping[str, int] = field(default_factory=dict)
    """Calls of functions for which there are kernels (`bert_runtime.cpu.native_kernels`), how many of each."""

    int8_flops_share: float = 0.0
    """Share of the matrix-multiply FLOPs at 128 tokens that run in INT8."""

    quantization: Mapping[str, Any] = field(default_factory=dict)
    """How weights and activations became 8-bit integers: the recipe, and what its `calibration` was made with."""

    parity: Mapping[str, Any] = field(default_factory=dict)
    """Largest absolute difference from PyTorch, and the tolerance it was held against."""

    kept_fp32: tuple[str, ...] = ()
    """Values of an FP16 graph that are computed in FP32, since they grew too large for half precision."""

    evaluated_on: str = ""
    """What computed parity, drift, metrics and self-test, where it was not the target itself."""

    drift: Mapping[str, Any] = field(default_factory=dict)
    """How far the answers moved from the FP32 variant's."""

    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The task metric on a labelled file, where one was given."""

    faithful: bool = False
    """Of the CPU's variants: whether it is FP32, or was found close enough to it to be the default if it is fast."""

    latency_ms: Mapping[str, float] = field(default_factory=dict)
    """Median latency on the exporting machine per shape, such as `1x128`."""

    @property
    def title(self) -> str:
        """What tells it from the bundle's others, such as `int8` and `fp16 cuda packed`."""
        return " ".join(
            [
                self.precision,
                *([self.target] if self.target != "cpu" else []),
                *([self.padding] if self.padding != MASKED else []),
            ]
        )

    @property
    def assets(self) -> tuple[Asset, ...]:
        """The graph's files."""
        return (self.model,) if self.external_data is None else (self.model, self.external_data)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything a runtime needs to know about a bundle before it opens a graph."""

    task: Task
    max_tokens: int
    """Longest sequence in tokens, special tokens included; longer inputs are truncated at the end."""

    pad_token_id: int
    tokenizer: Asset
    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    variants: tuple[Variant, ...]
    default_precision: str
    default_reason: str = ""
    """Why `default_precision` is the default."""

    self_test_inputs: tuple[Any, ...]
    """Each a text or a pair of texts."""

    source: Mapping[str, Any] = field(default_factory=dict)
    """The checkpoint this was made from: family, sha256 of its weights, its path when it was exported."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the tools that made the bundle."""

    machine: Mapping[str, Any] = field(default_factory=dict)
    """The machine on which latencies were measured."""

    extra: Mapping[str, Any] = field(default_factory=dict)
    """Top-level keys this release does not know; kept when the manifest is written again."""

    @property
    def id_limits(self) -> dict[str, int]:
        """By input, the number below which its values lie, of those that the bundle says it of."""
        return {each.name: each.exclusive_max for each in self.inputs if each.exclusive_max is not None}

    def variant(self, precision: str, target: str = "cpu") -> Variant:
        """The variant of that precision and target; raises `BundleError` naming those there are for the target.

        It is the masked one; others may stand beside it, see `padding_variants`.
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
        """The masked variants made for that kind of device."""
        return tuple(variant for variant in self.variants if variant.target == target and variant.padding == MASKED)

    def padding_variants(self, variant: Variant) -> dict[str, Variant]:
        """The variants of the same precision and target in other paddings than this one's, by padding."""
        key = (variant.precision, variant.target)
        return {
            each.padding: each
            for each in self.variants
            if (each.precision, each.target) == key and each.padding != variant.padding
        }

    @property
    def assets(self) -> tuple[Asset, ...]:
        """Every file beside the manifest, once."""
        return tuple(dict.fromkeys((self.tokenizer, *(asset for variant in self.variants for asset in variant.assets))))

    def to_dict(self) -> dict[str, Any]:
        """The manifest as JSON values."""
        values = {"format_version": FORMAT_VERSION, **to_plain(self)}
        return values | values.pop("extra")

    def to_json(self) -> str:
        """The manifest as `bundle.json` holds it."""
        return to_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """The inverse of `to_json`; raises `BundleError` with the key at fault, `NewerFormatError` for the future."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BundleError(f"not JSON: {error}") from None
        if not isinstance(values, dict):
            raise BundleError(f"expected a JSON object, found {type(values).__name__}")
        version = values.pop("format_version", None)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise BundleError(f"format_version: expected a whole number from 1, found {version!r}")
        if version > FORMAT_VERSION:
            raise NewerFormatError(
                f"the bundle has format version {version}, this release reads up to {FORMAT_VERSION}; "
                "upgrade with: pip install --upgrade bert-export"
            )
        known = {each.name for each in fields(cls)} - {"extra"}
        values["extra"] = {key: values.pop(key) for key in list(values) if key not in known}
        manifest = from_plain(cls, values)
        manifest.variant(manifest.default_precision)
        if manifest.max_tokens < MIN_TOKENS:
            raise BundleError(f"max_tokens: expected at least {MIN_TOKENS}, found {manifest.max_tokens}")
        return manifest

    @classmethod
    def read(cls, bundle: Path) -> "Manifest":
        """Reads `bundle/bundle.json`; raises `BundleError` when the directory is not a bundle."""
        path = bundle / MANIFEST_NAME
        if not path.is_file():
            found = "a file" if bundle.is_file() else "no such directory" if not bundle.exists() else "none"
            raise BundleError(
                f"{bundle}: expected a bundle (a directory with {MANIFEST_NAME}), found {found}; "
                "make one with: bert-export export CHECKPOINT BUNDLE"
            )
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{path}: cannot be read: {error}") from None
        except BundleError as error:
            raise type(error)(f"{path}: {error}") from None


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's contents in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
