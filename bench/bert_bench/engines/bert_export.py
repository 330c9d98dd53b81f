"""This project's own engines: the variants of a bundle."""

from dataclasses import dataclass
from typing import ClassVar

from bert_bench.engines.engine_spec import Engine, EngineSpec, ModelEngine
from bert_runtime import Manifest, load

__all__ = ["BundleSpec"]


@dataclass(frozen=True, kw_only=True)
class BundleSpec(EngineSpec):
    """One variant of the bundle, as `bert_runtime.load` opens it."""

    variant: str
    """Its precision."""
    prefix: str = ""
    """Stands before the precision in the engine's name, where other engines have the same precision."""

    own: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The variant's precision, after the prefix."""
        return self.prefix + self.variant

    @property
    def label(self) -> str:
        """This project and the precision."""
        return f"bert-export {self.variant.upper()}"

    @property
    def precision(self) -> str:
        """The variant's."""
        return self.variant

    def open(self) -> Engine:
        """Loads the variant; raises `BundleError`."""
        model = load(
            self.bundle, precision=self.variant, device="cpu", threads=self.threads,
            max_batch_tokens=self.max_batch_tokens,
        )  # fmt: skip
        assets = Manifest.read(self.bundle).variant(self.variant).assets
        return ModelEngine(model, sum(asset.size_bytes for asset in assets))
