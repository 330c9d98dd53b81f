"""Run exported BERT bundles: tokenization, inference and post-processing, without PyTorch.

    from bert_runtime import load

    model = load("bundle/")
    model("I lost my card")     # one input: one result
    model(["hello", "bye"])     # a list: a list of results in the same order

`load` and `Model` are the whole interface for inference. `tune` measures the fastest configuration on a machine,
`verify` checks a bundle's files and outputs, `load_attention` gives attention probabilities, and `ZeroShotClassifier`
classifies by labels of the caller's choice. The names of `__all__` are public; modules hold more for the exporter, the
trainer and the benchmark.
"""

import os
from typing import TYPE_CHECKING

from bert_runtime.attention import Attention, AttentionModel, load_attention
from bert_runtime.bundle.manifest import Asset, AttentionGraph, Manifest, SelfTest, TensorSpec, Variant
from bert_runtime.errors import (
    BertError,
    BundleError,
    CascadeBundleError,
    CudaUnavailableError,
    DataError,
    DeploymentError,
    ForkedSessionError,
    HubError,
    InputError,
    MissingExtraError,
    NewerFormatError,
)
from bert_runtime.evaluation import evaluate
from bert_runtime.inputs import Column, InputFailure, OnError, SingleInput
from bert_runtime.loading import load
from bert_runtime.model import Model
from bert_runtime.plan import Plan, Tuning
from bert_runtime.ranking import RankedDocument
from bert_runtime.records import Record, read_records
from bert_runtime.runner import FunctionRunner, Runner
from bert_runtime.tasks import (
    TASKS,
    Answer,
    Answers,
    Classification,
    Embedding,
    Entities,
    Entity,
    FeatureExtraction,
    Filling,
    Fillings,
    FillMask,
    MultiLabelClassification,
    NextSentence,
    NextSentencePrediction,
    Outputs,
    QuestionAnswering,
    Regression,
    Relevance,
    ReplacedTokenDetection,
    ReplacedTokens,
    Reranking,
    Result,
    SentenceEmbedding,
    SparseEmbedding,
    SparseVector,
    Task,
    TextClassification,
    TextInput,
    TokenClassification,
    TokenVectors,
)
from bert_runtime.tokenization import Batch
from bert_runtime.tuner import tune
from bert_runtime.vector_quantization import (
    EmbeddingPrecision,
    embedding_ranges,
    quantize_embeddings,
)
from bert_runtime.verification import Check, verify
from bert_runtime.zero_shot import ZeroShotClassification, ZeroShotClassifier

__all__ = [
    "TASKS",
    "Answer",
    "Answers",
    "Asset",
    "Attention",
    "AttentionGraph",
    "AttentionModel",
    "Batch",
    "BertError",
    "BundleError",
    "CascadeBundleError",
    "Check",
    "Classification",
    "Column",
    "CudaUnavailableError",
    "DataError",
    "DeploymentError",
    "Embedding",
    "EmbeddingPrecision",
    "Entities",
    "Entity",
    "FeatureExtraction",
    "FillMask",
    "Filling",
    "Fillings",
    "ForkedSessionError",
    "FunctionRunner",
    "HubError",
    "InputError",
    "InputFailure",
    "Manifest",
    "MissingExtraError",
    "Model",
    "MultiLabelClassification",
    "NewerFormatError",
    "NextSentence",
    "NextSentencePrediction",
    "OnError",
    "Outputs",
    "Plan",
    "QuestionAnswering",
    "RankedDocument",
    "Record",
    "Regression",
    "Relevance",
    "ReplacedTokenDetection",
    "ReplacedTokens",
    "Reranking",
    "Result",
    "Runner",
    "SelfTest",
    "SentenceEmbedding",
    "SingleInput",
    "SparseEmbedding",
    "SparseVector",
    "Task",
    "TensorSpec",
    "TextClassification",
    "TextInput",
    "TokenClassification",
    "TokenVectors",
    "Tuning",
    "Variant",
    "ZeroShotClassification",
    "ZeroShotClassifier",
    "embedding_ranges",
    "evaluate",
    "load",
    "load_attention",
    "quantize_embeddings",
    "read_records",
    "tune",
    "verify",
]

# Official builds of ONNX Runtime report to Microsoft from 1.31 on unless this is set before they are imported
# (Privacy.md in its wheel). Whoever wants that sets the variable to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """Read the installed release on first use: that takes 30 ms, which `import bert_runtime` does not need."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version

        return version("bert-export")
