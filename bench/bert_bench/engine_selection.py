"""The engines of a comparison, each with its files made and its environment there, or with the reason why not."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bert_bench.checkpoints import CheckpointInfo
from bert_bench.comparison_request import BUNDLE_PREFIX, ComparisonRequest
from bert_bench.engines import BundleSpec, CheckpointSpec, EngineSpec, PreparedSpec
from bert_bench.engines.onnxruntime_plain import PlainExportSpec
from bert_bench.engines.registry import COMPARED_ENGINES, ComparedEngine
from bert_bench.errors import BenchError
from bert_bench.workers.artifact_cache import ArtifactCache
from bert_bench.workers.engine_pool import EnginePool
from bert_bench.workers.environments import Environment
from bert_runtime import Manifest
from bert_runtime.machine import has_instruction_set

__all__ = ["EngineSelection"]


@dataclass(frozen=True, kw_only=True)
class EngineSelection:
    """Makes the specifications of a comparison's engines."""

    request: ComparisonRequest
    facts: CheckpointInfo
    manifest: Manifest
    artifact_cache: ArtifactCache
    common: dict[str, Any]
    """Fields that every specification has."""

    def ready(self, engine_pool: EnginePool) -> Iterator[tuple[EngineSpec, Environment | None]]:
        """The engines that can be started, the bundle's own first; the line-up gets the others' reasons."""
        for variant in self.manifest.variants_for("cpu"):
            spec = BundleSpec(variant=variant.precision, prefix=BUNDLE_PREFIX, **self.common)
            if self.request.wants(spec.name):
                yield spec, None
        task = self.manifest.task.name
        for name, peer in COMPARED_ENGINES.items():
            if not self.request.wants(name):
                continue
            if not peer.does(task):
                if self.request.engines is not None:
                    engine_pool.failures[name] = f"does not do {task}, or not as a product that can be compared"
                continue
            if peer.config.precision == "bf16" and not has_instruction_set("bf16"):
                engine_pool.failures[name] = "this processor has no instructions for bf16"
                continue
            with engine_pool.drop_on_failure(name):
                yield self._ready(peer), self.artifact_cache.environment(peer.environment)

    def _ready(self, peer: ComparedEngine) -> EngineSpec:
        """The peer's specification, its files made; raises `BenchError` with the reason where they cannot be."""
        if issubclass(peer.spec, PlainExportSpec):
            arguments = (self.facts.path, self.manifest.task)
            graph = self.artifact_cache.made("onnxruntime-plain.onnx", "export_plain_graph", *arguments)
            return peer.spec(config=peer.config, graph=graph, **self.common)
        if not issubclass(peer.spec, CheckpointSpec):
            raise BenchError(f"{peer.config.name} has no way to be made")
        spec = peer.spec(config=peer.config, checkpoint=self.facts.path, **self.common)
        return self.artifact_cache.prepared(spec) if isinstance(spec, PreparedSpec) else spec
