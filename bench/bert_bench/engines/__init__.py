"""The engines that are compared: this project's bundles and their peers, a small class each."""

from bert_bench.engines.bert_export import BundleSpec
from bert_bench.engines.engine_spec import (
    CheckpointSpec,
    Engine,
    EngineSpec,
    Kind,
    ModelEngine,
    PeerSpec,
    PreparedSpec,
    ProductEngine,
    ProductSpec,
)

__all__ = [
    "BundleSpec",
    "CheckpointSpec",
    "Engine",
    "EngineSpec",
    "Kind",
    "ModelEngine",
    "PeerSpec",
    "PreparedSpec",
    "ProductEngine",
    "ProductSpec",
]
