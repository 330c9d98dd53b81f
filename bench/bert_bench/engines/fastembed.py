"""fastembed on a plain ONNX export of the encoder, for sentence embeddings."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from bert_bench.engines.engine import TextEngine
from bert_bench.engines.engine_spec import EngineConfig, TextEngineSpec, folder_bytes
from bert_bench.errors import BenchError
from bert_runtime import Manifest
from bert_runtime.tasks import SentenceEmbedding, TextInput

__all__ = ["CONFIGS", "FastEmbedSpec"]

CONFIGS = (EngineConfig(name="fastembed", label="fastembed FP32"),)

_NAME = "bert-bench/checkpoint"
_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_GRAPH = "model.onnx"


@dataclass(frozen=True, kw_only=True)
class FastEmbedSpec(TextEngineSpec):
    """`TextEmbedding` with a custom model, which fastembed pools and normalizes itself."""

    environment: ClassVar[str] = "fastembed"
    prepare_environment: ClassVar[str] = "sentence-transformers"
    """fastembed runs ONNX files but cannot export them."""
    tasks: ClassVar[tuple[str, ...]] = ("sentence-embedding",)

    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        """Export with sentence-transformers; keep the graph and the tokenizer's files."""
        from sentence_transformers import SentenceTransformer

        with TemporaryDirectory(dir=folder) as exported:
            SentenceTransformer(str(self.checkpoint), backend="onnx", device="cpu").save_pretrained(exported)
            for name in _FILES:
                shutil.copyfile(Path(exported) / name, folder / name)
            shutil.copyfile(Path(exported) / "onnx" / _GRAPH, folder / _GRAPH)

    def open_text_engine(self, manifest: Manifest) -> TextEngine:
        """Load the model with the engine's number of threads."""
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        task = manifest.task
        assert isinstance(task, SentenceEmbedding)
        pooling = {"mean": PoolingType.MEAN, "cls": PoolingType.CLS}.get(task.pooling)
        if pooling is None or task.dense_sizes:
            raise BenchError(
                f"fastembed supports mean or cls pooling without dense layers, found {task.pooling}"
                + (" with dense layers" if task.dense_sizes else "")
            )
        TextEmbedding.add_custom_model(
            model=_NAME, pooling=pooling, normalization=task.normalize, sources=ModelSource(hf=_NAME),
            dim=task.dimensions, model_file=_GRAPH,
        )  # fmt: skip
        model = TextEmbedding(_NAME, specific_model_path=str(self.files), threads=self.threads)

        def embed(texts: list[Any]) -> Any:
            return np.stack(list(model.embed(texts)))

        return TextEngine(lambda text: next(iter(model.embed([text]))), embed, embed, folder_bytes(self.files, _GRAPH))
