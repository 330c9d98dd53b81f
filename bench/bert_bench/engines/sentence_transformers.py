"""sentence-transformers with its PyTorch, ONNX and OpenVINO backends, for sentence embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bert_bench.engines.engine import TextEngine
from bert_bench.engines.engine_spec import EngineConfig, TextEngineSpec, folder_bytes
from bert_bench.engines.int8_preset import INT8_FILE, INT8_PRESET
from bert_runtime import Manifest
from bert_runtime.tasks import TextInput

__all__ = ["CONFIGS", "SentenceTransformersSpec"]

CONFIGS = (
    EngineConfig(
        name="sentence-transformers", label="sentence-transformers, PyTorch FP32", settings={"backend": "torch"},
    ),
    EngineConfig(
        name="sentence-transformers-onnx", label="sentence-transformers, ONNX FP32", settings={"backend": "onnx"},
    ),
    EngineConfig(
        name="sentence-transformers-onnx-int8", label=f"sentence-transformers, ONNX INT8 ({INT8_PRESET})",
        precision="int8", settings={"backend": "onnx", "file": INT8_FILE},
    ),
    EngineConfig(
        name="sentence-transformers-openvino", label="sentence-transformers, OpenVINO FP32",
        settings={"backend": "openvino"},
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SentenceTransformersSpec(TextEngineSpec):
    """`SentenceTransformer.encode` with its default batch size of 32."""

    environment: ClassVar[str] = "sentence-transformers"
    tasks: ClassVar[tuple[str, ...]] = ("sentence-embedding",)

    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        """Save the checkpoint with the backend's model."""
        from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

        backend = self.config.settings["backend"]
        if backend == "torch":
            return
        model = SentenceTransformer(str(self.checkpoint), backend=backend, device="cpu")
        model.save_pretrained(str(folder))
        if "file" in self.config.settings:
            export_dynamic_quantized_onnx_model(model, INT8_PRESET, str(folder))

    def open_text_engine(self, manifest: Manifest) -> TextEngine:
        """Load the model with the engine's number of threads."""
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(self.threads)
        backend = self.config.settings["backend"]
        path = self.checkpoint if backend == "torch" else self.files
        model = SentenceTransformer(
            str(path), backend=backend, device="cpu", model_kwargs=self._backend_options(backend), local_files_only=True
        )
        # The folder also holds the FP32 graph that the INT8 graph was quantized from.
        suffixes = (
            (self.config.settings["file"],) if "file" in self.config.settings else (".safetensors", ".onnx", ".bin")
        )
        model.max_seq_length = manifest.max_tokens

        def encode(texts: Any) -> Any:
            return model.encode(texts, show_progress_bar=False)

        return TextEngine(encode, encode, encode, folder_bytes(path, *suffixes))

    def _backend_options(self, backend: str) -> dict[str, Any]:
        """Return the backend's options for threads, precision and file."""
        if backend == "onnx":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.threads
            file = self.config.settings.get("file", "model.onnx")
            return {"provider": "CPUExecutionProvider", "session_options": options, "file_name": f"onnx/{file}"}
        if backend == "openvino":
            return {
                "ov_config": {
                    "PERFORMANCE_HINT": "LATENCY",
                    "INFERENCE_NUM_THREADS": str(self.threads),
                    "INFERENCE_PRECISION_HINT": "f32",
                }
            }
        return {}
