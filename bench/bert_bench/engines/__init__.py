"""The engines that are compared: this project's bundles and their peers, a small class each."""

from bert_bench.engines.bert_export import BundleSpec
from bert_bench.engines.engine_spec import (
    CheckpointSpec,
    ComparedEngineSpec,
    Engine,
    EngineConfig,
    EngineSpec,
    ModelEngine,
    PreparedSpec,
    TextEngine,
    TextEngineSpec,
)

__all__ = [
    "BundleSpec",
    "CheckpointSpec",
    "ComparedEngineSpec",
    "Engine",
    "EngineConfig",
    "EngineSpec",
    "ModelEngine",
    "PreparedSpec",
    "TextEngine",
    "TextEngineSpec",
]
