"""The engines that are compared: variants of a bundle, and other ways to run the same checkpoint."""

from bert_bench.engines.bert_export import BundleSpec
from bert_bench.engines.engine import Engine, ModelEngine, TextEngine
from bert_bench.engines.engine_spec import (
    CheckpointSpec,
    ComparedEngineSpec,
    EngineConfig,
    EngineSpec,
    PreparedSpec,
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
