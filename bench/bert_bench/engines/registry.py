"""Every peer that a bundle can be compared with."""

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
from bert_runtime.errors import InputError

__all__ = ["COMPARED_ENGINES", "ComparedEngine", "chosen_peers"]


@dataclass(frozen=True)
class ComparedEngine:
    """An engine of the registry: its class, and which member of that class's family."""

    spec: type[ComparedEngineSpec]
    config: EngineConfig

    @property
    def environment(self) -> str | None:
        """The requirements file it runs in, by name."""
        return self.spec.environment

    def does(self, task: str) -> bool:
        """Whether it can do the task."""
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
"""By name, in the order in which reports list them."""


def chosen_peers(names: Sequence[str] | None, task: str) -> list[ComparedEngine]:
    """The peers of those names, or all that do the task; raises `InputError` for a name that there is not."""
    if names is None:
        return [peer for peer in COMPARED_ENGINES.values() if peer.does(task)]
    unknown = [name for name in names if name not in COMPARED_ENGINES]
    if unknown:
        raise InputError(f"unknown engine {', '.join(unknown)}; expected some of {', '.join(COMPARED_ENGINES)}")
    return [COMPARED_ENGINES[name] for name in names]
