"""ONNX Runtime's tools: `onnxruntime.transformers.optimizer`, then `quantize_dynamic`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from bert_bench.engines.engine_spec import EngineConfig, Forward, PreparedSpec
from bert_bench.engines.onnxruntime_plain import onnx_session
from bert_bench.engines.optimum import export_with_optimum
from bert_bench.engines.transformers_models import AUTO_CLASSES
from bert_runtime import Manifest
from bert_runtime.tasks import TextInput

__all__ = ["CONFIGS", "OnnxRuntimeToolsSpec"]

CONFIGS = (
    EngineConfig(name="onnxruntime-transformers", label="onnxruntime.transformers FP32"),
    EngineConfig(
        name="onnxruntime-transformers-int8",
        label="onnxruntime.transformers + quantize_dynamic INT8",
        precision="int8",
    ),
)

_GRAPH = "model.onnx"


@dataclass(frozen=True, kw_only=True)
class OnnxRuntimeToolsSpec(PreparedSpec):
    """BERT fusions of `onnxruntime.transformers` on optimum's export, whose patterns they match."""

    environment: ClassVar[str] = "optimum"
    tasks: ClassVar[tuple[str, ...]] = tuple(AUTO_CLASSES)

    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        """Export and fuse; for INT8, quantize the fused graph per channel."""
        from tempfile import TemporaryDirectory

        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.transformers import optimizer

        with TemporaryDirectory(dir=folder) as plain:
            config = export_with_optimum(self.checkpoint, Manifest.read(self.bundle).task.name, Path(plain)).config
            fused = optimizer.optimize_model(
                str(Path(plain) / _GRAPH), model_type="bert", num_heads=config.num_attention_heads,
                hidden_size=config.hidden_size,
            )  # fmt: skip
            if self.config.precision == "fp32":
                fused.save_model_to_file(str(folder / _GRAPH))
                return
            fused.save_model_to_file(str(Path(plain) / "fused.onnx"))
            quantize_dynamic(
                Path(plain) / "fused.onnx", folder / _GRAPH, per_channel=True, weight_type=QuantType.QInt8,
                # Fused operators have no inferred types; without it: "Unable to find data type for weight_name".
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )  # fmt: skip

    def open_session(self, manifest: Manifest) -> tuple[Forward, int]:
        """Load the graph."""
        graph = self.files / _GRAPH
        return onnx_session(graph, self.threads, manifest), graph.stat().st_size

    def open_streams(self, manifest: Manifest) -> Forward:
        """Load the graph again, with one thread for each caller."""
        return replace(self, threads=1).open_session(manifest)[0]
