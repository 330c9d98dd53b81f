"""Entries of the manifest: files, tensors, and the graphs with their measurements."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_runtime.errors import BundleError

__all__ = [
    "MASKED",
    "PACKED",
    "PADDING_MODES",
    "PRECISIONS",
    "UNMASKED",
    "Asset",
    "AttentionGraph",
    "SelfTest",
    "TensorSpec",
    "Variant",
]

PRECISIONS = ("fp32", "fp16", "int8", "bf16")
"""Precisions of variants; commands also take `auto`."""

PADDING_MODES = (MASKED, UNMASKED, PACKED) = ("masked", "unmasked", "packed")
"""How a graph reads padding; see `Variant.padding`."""


@dataclass(frozen=True, kw_only=True)
class Asset:
    """A file of the bundle."""

    file: str
    """Name inside the bundle's directory."""
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """An input or output of the graph."""

    name: str
    dtype: str
    """Element type in ONNX terms, such as `int64`."""

    axes: tuple[str | int, ...]
    """Size of each dimension, or a name where it varies."""

    exclusive_max: int | None = field(default=None, metadata={"key": "below"})
    """Values of an input lie in 0 to this minus 1; `None` where the bundle does not say (JSON key `below`)."""


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """A variant's outputs for the manifest's `self_test_inputs` when the bundle was made."""

    outputs: tuple[tuple[float, ...], ...]
    """Raw outputs of each input, run alone; see `bert_runtime.verification.self_test_values`."""

    tolerance: float
    """Largest absolute difference that another machine's rounding explains, with the same native kernels."""


class _GraphFiles:
    """The files of an entry with a graph."""

    model: Asset
    external_data: Asset | None

    @property
    def assets(self) -> tuple[Asset, ...]:
        """The graph's files: the graph, and its external data if it has any."""
        return (self.model,) if self.external_data is None else (self.model, self.external_data)

    @property
    def size_bytes(self) -> int:
        """Size of the graph's files."""
        return sum(asset.size_bytes for asset in self.assets)


@dataclass(frozen=True, kw_only=True)
class Variant(_GraphFiles):
    """One graph of the bundle: precision × target × padding mode, with the measurements that validate it."""

    precision: str
    """One of `PRECISIONS`."""

    target: str = "cpu"
    """Kind of device that the graph is made for: `cpu`, `cuda` or `tensorrt`."""

    padding: str = field(default=MASKED, metadata={"key": "form"})
    """Padding mode (JSON key `form`): `masked` reads padding anywhere, `unmasked` reads none, `packed` reads
    right-padded batches and computes their real tokens only."""

    model: Asset
    opset: int
    self_test: SelfTest

    external_data: Asset | None = None
    """The weights, where they are not inside the graph's file; several variants may share them."""

    instruction_set: str | None = None
    """Instruction set that the graph is fast with (`vnni`, `bf16`); `None` for any."""

    fusions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Per fusion, the `expected` and `found` counts."""

    functions: Mapping[str, int] = field(default_factory=dict)
    """Calls of functions that native kernels exist for (`bert_runtime.cpu.native_kernels`), by function."""

    int8_flops_share: float = 0.0
    """Share of the matmul FLOPs at 128 tokens that run in INT8."""

    quantization: Mapping[str, Any] = field(default_factory=dict)
    """How weights and activations were quantized: the recipe, and the data of its `calibration`."""

    parity: Mapping[str, Any] = field(default_factory=dict)
    """Largest absolute difference from PyTorch, and its tolerance."""

    kept_fp32: tuple[str, ...] = ()
    """Values of an FP16 graph that are computed in FP32, since FP16 would overflow."""

    evaluated_on: str = ""
    """Where parity, drift, metrics and self-test were computed, if not on the target."""

    drift: Mapping[str, Any] = field(default_factory=dict)
    """Difference of the outputs from the FP32 variant's."""

    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Task metrics on a labelled file, where one was given."""

    faithful: bool = False
    """On the CPU: whether the variant is FP32, or close enough to it to be the default where it is faster."""

    latency_ms: Mapping[str, float] = field(default_factory=dict)
    """Median latency on the exporting machine by shape, such as `1x128`."""

    def __repr__(self) -> str:
        return f"Variant({self.title}, {self.model.file})"

    @property
    def title(self) -> str:
        """A name that is unique in the bundle, such as `int8` or `fp16 cuda packed`."""
        return " ".join(
            [
                self.precision,
                *([self.target] if self.target != "cpu" else []),
                *([self.padding] if self.padding != MASKED else []),
            ]
        )


@dataclass(frozen=True, kw_only=True)
class AttentionGraph(_GraphFiles):
    """The graph that also gives attention probabilities: FP32, for the CPU, `masked`."""

    model: Asset
    opset: int
    outputs: tuple[TensorSpec, ...]
    """Per layer, from the first: float32 [batch, heads, sequence, sequence], of queries and keys. The model's own
    output is another output of the graph."""

    external_data: Asset | None = None
    """The weights, where they are not inside the graph's file: those of the FP32 variant for the CPU."""

    parity: Mapping[str, Any] = field(default_factory=dict)
    """Largest absolute difference of a probability from PyTorch's, and its tolerance."""

    def __post_init__(self) -> None:
        heads = {output.axes[1] if len(output.axes) == 4 else None for output in self.outputs}
        if len(heads) != 1 or not all(isinstance(number, int) and number > 0 for number in heads):
            raise BundleError(
                "attention.outputs: expected an output [batch, heads, sequence, sequence] per layer, with one number "
                f"of heads, found {[list(output.axes) for output in self.outputs]!s:.200}"
            )

    @property
    def title(self) -> str:
        """The graph's name beside those of the variants."""
        return "attention"

    @property
    def num_heads(self) -> int:
        """Attention heads per layer."""
        return int(self.outputs[0].axes[1])
