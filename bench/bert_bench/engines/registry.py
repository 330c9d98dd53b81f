"""The registry of engines that a bundle can be compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

from bert_bench.engines import (
    ctranslate2,
    fastembed,
    onnxruntime_plain,
    onnxruntime_tools,
    openvino,
    optimum,
    pytorch,
    sentence_transformers,
    transformers_pipeline,
)
from bert_bench.engines.engine_spec import ComparedEngineSpec, EngineConfig

__all__ = ["COMPARED_ENGINES", "ComparedEngine"]


@dataclass(frozen=True)
class ComparedEngine:
    """A registered engine: its spec class and its configuration."""

    spec: type[ComparedEngineSpec]
    config: EngineConfig

    @property
    def environment(self) -> str | None:
        """Name of the requirements file of its environment; `None` for the environment of this process."""
        return self.spec.environment

    def supports(self, task: str) -> bool:
        """Return whether the engine can run the task."""
        return self.spec.tasks is None or task in self.spec.tasks


_FAMILIES: tuple[tuple[type[ComparedEngineSpec], Sequence[EngineConfig]], ...] = (
    (pytorch.PyTorchSpec, pytorch.CONFIGS),
    (onnxruntime_plain.PlainExportSpec, onnxruntime_plain.CONFIGS),
    (optimum.OptimumSpec, optimum.CONFIGS),
    (onnxruntime_tools.OnnxRuntimeToolsSpec, onnxruntime_tools.CONFIGS),
    (openvino.OpenVINOSpec, openvino.CONFIGS),
    (ctranslate2.CTranslate2Spec, ctranslate2.CONFIGS),
    (transformers_pipeline.PipelineSpec, transformers_pipeline.CONFIGS),
    (sentence_transformers.SentenceTransformersSpec, sentence_transformers.CONFIGS),
    (fastembed.FastEmbedSpec, fastembed.CONFIGS),
)

COMPARED_ENGINES = {config.name: ComparedEngine(spec, config) for spec, configs in _FAMILIES for config in configs}
"""Compared engines by name, in the order of reports."""
