"""The Hugging Face pipeline, over PyTorch and over ONNX Runtime through optimum."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_bench.engines.engine_spec import EngineConfig, TextEngine, TextEngineSpec, folder_bytes
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
    """`pipeline("text-classification")` with its default batching, one text at a time."""

    environment: ClassVar[str] = "optimum"
    tasks: ClassVar[tuple[str, ...]] = ("text-classification",)

    @property
    def artifact_config(self) -> EngineConfig:
        """For INT8, what optimum makes."""
        return INT8 if self.config.precision == "int8" else self.config

    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        """For INT8, what optimum writes."""
        if self.config.precision == "int8":
            OptimumSpec(
                bundle=self.bundle, threads=self.threads, max_batch_tokens=self.max_batch_tokens,
                checkpoint=self.checkpoint, config=INT8,
            ).prepare(folder, texts)  # fmt: skip

    def open_text_engine(self, manifest: Manifest) -> TextEngine:
        """The pipeline with the checkpoint's own tokenizer, truncating at the bundle's length."""
        from transformers import AutoTokenizer, pipeline

        assert isinstance(manifest.task, TextClassification)
        labels = manifest.task.labels
        tokenizer = AutoTokenizer.from_pretrained(self.checkpoint, model_max_length=manifest.max_tokens)
        model, size_bytes = self._model()
        run: Any = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")

        def many(texts: list[Any]) -> Any:
            return run(texts, truncation=True)

        def raw(texts: list[Any]) -> FloatArray:
            answers = run(texts, truncation=True, top_k=None, function_to_apply="none")
            scores = [{each["label"]: each["score"] for each in answer} for answer in answers]
            return np.array([[each[label] for label in labels] for each in scores], dtype=np.float32)

        return TextEngine(lambda text: run(text, truncation=True), many, raw, size_bytes)

    def _model(self) -> tuple[Any, int]:
        """The model under the pipeline, and its size on disk in bytes."""
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
