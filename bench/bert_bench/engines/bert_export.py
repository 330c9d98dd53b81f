"""The bert-export engines: the variants of a bundle, run by `bert_runtime`."""

from dataclasses import dataclass
from typing import ClassVar

from bert_bench.engines.engine import Engine, ModelEngine
from bert_bench.engines.engine_spec import EngineSpec
from bert_runtime import Manifest, load

__all__ = ["BundleSpec"]


@dataclass(frozen=True, kw_only=True)
class BundleSpec(EngineSpec):
    """One variant of the bundle, opened by `bert_runtime.load`."""

    variant: str
    """The variant's precision."""
    prefix: str = ""
    """Prefix of the engine's name, for comparisons in which other engines have the same precision."""

    is_bundle: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The variant's precision, after the prefix."""
        return self.prefix + self.variant

    @property
    def label(self) -> str:
        """The project's name and the precision."""
        return f"bert-export {self.variant.upper()}"

    @property
    def precision(self) -> str:
        """The variant's precision."""
        return self.variant

    def open(self) -> Engine:
        """Load the variant.

        Raises:
            BundleError: the bundle or the variant cannot be loaded.
        """
        model = load(
            self.bundle, precision=self.variant, device="cpu", threads=self.threads,
            max_batch_tokens=self.max_batch_tokens,
        )  # fmt: skip
        return ModelEngine(model, Manifest.read(self.bundle).variant(self.variant).size_bytes)
