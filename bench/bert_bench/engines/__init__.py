"""The engines that are compared: this project's bundles and their peers, a small class each."""

from bert_bench.engines.base import (
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
from bert_bench.engines.bert_export import BundleSpec

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
