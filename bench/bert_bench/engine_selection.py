"""The engines of a comparison: which are requested and possible, with their artifacts and environments."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bert_bench.checkpoints import CheckpointInfo
from bert_bench.comparison_request import BUNDLE_ENGINES, BUNDLE_PREFIX, ComparisonRequest
from bert_bench.engines import BundleSpec, CheckpointSpec, EngineSpec, PreparedSpec
from bert_bench.engines.onnxruntime_plain import PlainExportSpec
from bert_bench.engines.pytorch import EAGER
from bert_bench.engines.registry import COMPARED_ENGINES, ComparedEngine
from bert_bench.errors import BenchError
from bert_bench.workers.artifact_cache import ArtifactCache
from bert_bench.workers.engine_pool import EnginePool
from bert_bench.workers.environments import Environment
from bert_export.compression_summary import COMPRESSION_KEY
from bert_runtime import Manifest
from bert_runtime.machine import has_instruction_set

__all__ = ["EngineSelection", "uncompressed_sha256"]


def uncompressed_sha256(manifest: Manifest) -> str | None:
    """Return the hash of the weights that a bundle's model was compressed from.

    `None` if it was not compressed, or its vocabulary was cut: other engines read the bundle's token ids.
    """
    record = manifest.extra.get(COMPRESSION_KEY) or {}
    found: str | None = None if record.get("vocabulary") else record.get("uncompressed", {}).get("sha256")
    return found


@dataclass(frozen=True, kw_only=True)
class EngineSelection:
    """Selects and prepares the engines of a comparison."""

    request: ComparisonRequest
    checkpoint: CheckpointInfo
    manifest: Manifest
    artifact_cache: ArtifactCache
    spec_fields: dict[str, Any]
    """Fields that all specifications share: bundle, threads and batch size."""

    @property
    def is_compressed(self) -> bool:
        """Whether the bundle's model was compressed from the checkpoint's, which the other engines run."""
        return self.checkpoint.sha256 == uncompressed_sha256(self.manifest)

    def prepared_specs(self, engine_pool: EnginePool) -> Iterator[tuple[EngineSpec, Environment | None]]:
        """Yield the engines that can be started with their environments, the bundle's first.

        Engines that cannot be started go to `engine_pool.failures` with the reason; those that do not support the task,
        only if they were requested by name.
        """
        absent = {name for name in self.request.engines or () if name in BUNDLE_ENGINES}
        for variant in self.manifest.variants_for("cpu"):
            spec = BundleSpec(variant=variant.precision, prefix=BUNDLE_PREFIX, **self.spec_fields)
            absent.discard(spec.name)
            if self.request.wants(spec.name):
                yield spec, None
        engine_pool.failures.update(dict.fromkeys(sorted(absent), "the bundle has no such variant"))
        task = self.manifest.task.name
        for name, engine in COMPARED_ENGINES.items():
            if not self.request.wants(name):
                continue
            if not engine.supports(task):
                if self.request.engines is not None:
                    engine_pool.failures[name] = f"does not support {task}, or not with comparable outputs"
                continue
            if engine.config.precision == "bf16" and not has_instruction_set("bf16"):
                engine_pool.failures[name] = "this processor has no bf16 instructions"
                continue
            with engine_pool.drop_on_failure(name):
                yield self._prepare(engine), self.artifact_cache.environment(engine.environment)

    def reference_spec(self) -> EngineSpec:
        """Return the specification of the checkpoint in PyTorch, whose outputs others are compared with."""
        return self._prepare(COMPARED_ENGINES[EAGER.name])

    def _prepare(self, engine: ComparedEngine) -> EngineSpec:
        """Return the engine's specification, its artifacts made; raise `BenchError` if they cannot be."""
        if issubclass(engine.spec, PlainExportSpec):
            arguments = (self.checkpoint.path, self.manifest.task)
            graph = self.artifact_cache.artifact("onnxruntime-plain.onnx", "export_plain_graph", *arguments)
            return engine.spec(config=engine.config, graph=graph, **self.spec_fields)
        if not issubclass(engine.spec, CheckpointSpec):
            raise BenchError(f"{engine.config.name}: expected a PlainExportSpec or CheckpointSpec, found {engine.spec}")
        spec = engine.spec(config=engine.config, checkpoint=self.checkpoint.path, **self.spec_fields)
        return self.artifact_cache.prepared(spec) if isinstance(spec, PreparedSpec) else spec
