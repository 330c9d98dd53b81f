"""The Hugging Face pipeline, with a PyTorch model or with optimum's INT8 model in ONNX Runtime."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_bench.engines.engine import TextEngine
from bert_bench.engines.engine_spec import EngineConfig, TextEngineSpec, folder_bytes
from bert_bench.engines.optimum import INT8, OptimumSpec
from bert_runtime import Manifest
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import TextClassification, TextInput

__all__ = ["CONFIGS", "PipelineSpec"]

CONFIGS = (
    EngineConfig(name="pipeline-pytorch", label="transformers pipeline, PyTorch FP32"),
    EngineConfig(name="pipeline-optimum-int8", label="transformers pipeline, optimum INT8", precision="int8"),
)


@dataclass(frozen=True, kw_only=True)
class PipelineSpec(TextEngineSpec):
    """`pipeline("text-classification")` with its default batching: one text at a time."""

    environment: ClassVar[str] = "optimum"
    tasks: ClassVar[tuple[str, ...]] = ("text-classification",)

    @property
    def artifact_config(self) -> EngineConfig:
        """The configuration of optimum's INT8 model, or the engine's own."""
        return INT8 if self.config.precision == "int8" else self.config

    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        """Prepare optimum's INT8 model; the PyTorch pipeline needs no files."""
        if self.config.precision == "int8":
            OptimumSpec(
                bundle=self.bundle, threads=self.threads, max_batch_tokens=self.max_batch_tokens,
                checkpoint=self.checkpoint, config=INT8,
            ).prepare(folder, texts)  # fmt: skip

    def open_text_engine(self, manifest: Manifest) -> TextEngine:
        """Load the pipeline with the checkpoint's tokenizer, truncating at the bundle's maximum length."""
        from transformers import AutoTokenizer, pipeline

        assert isinstance(manifest.task, TextClassification)
        labels = manifest.task.labels
        tokenizer = AutoTokenizer.from_pretrained(self.checkpoint, model_max_length=manifest.max_tokens)
        model, size_bytes = self._load_model()
        classify: Any = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")

        def predict(inputs: Any) -> Any:
            return classify(inputs, truncation=True)

        def logits(texts: list[Any]) -> FloatArray:
            predictions = classify(texts, truncation=True, top_k=None, function_to_apply="none")
            scores = [{item["label"]: item["score"] for item in prediction} for prediction in predictions]
            return np.array([[by_label[label] for label in labels] for by_label in scores], dtype=np.float32)

        return TextEngine(predict, predict, logits, size_bytes)

    def _load_model(self) -> tuple[Any, int]:
        """Load the pipeline's model; return it and its size on disk in bytes."""
        if self.config.precision == "int8":
            import onnxruntime
            from optimum.onnxruntime import ORTModelForSequenceClassification

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.threads
            model = ORTModelForSequenceClassification.from_pretrained(self.files, session_options=options)
            return model, folder_bytes(self.files, ".onnx")
        import torch
        from transformers import AutoModelForSequenceClassification

        torch.set_num_threads(self.threads)
        model = AutoModelForSequenceClassification.from_pretrained(self.checkpoint)
        return model, folder_bytes(self.checkpoint, ".safetensors")
