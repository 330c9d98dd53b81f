"""Hugging Face optimum: ONNX export, optimization levels O1 to O4, and dynamic INT8."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from bert_bench.engines.engine_spec import EngineConfig, Forward, PreparedSpec
from bert_bench.engines.int8_preset import INT8_PRESET
from bert_bench.engines.onnxruntime_plain import onnx_session
from bert_bench.engines.transformers_models import AUTO_CLASSES, auto_model
from bert_runtime import Manifest
from bert_runtime.tasks import TextInput

__all__ = ["CONFIGS", "INT8", "OptimumSpec", "export_with_optimum"]

INT8 = EngineConfig(
    name="optimum-int8", label=f"optimum dynamic INT8 ({INT8_PRESET}, per channel)", precision="int8",
    settings={"preset": INT8_PRESET},
)  # fmt: skip
"""Also the model of the INT8 `transformers` pipeline."""

CONFIGS = (
    EngineConfig(name="optimum-plain", label="optimum export FP32"),
    EngineConfig(name="optimum-o1", label="optimum O1", settings={"level": "O1"}),
    EngineConfig(name="optimum-o2", label="optimum O2", settings={"level": "O2"}),
    EngineConfig(name="optimum-o3", label="optimum O3 (GELU approximated)", exact=False, settings={"level": "O3"}),
    EngineConfig(name="optimum-o4", label="optimum O4 (FP16)", precision="fp16", settings={"level": "O4"}),
    INT8,
)


def export_with_optimum(checkpoint: Path, task: str, folder: Path) -> Any:
    """Export the checkpoint with optimum into `folder`, configuration included, and return the model object."""
    import optimum.onnxruntime

    exporter = auto_model(optimum.onnxruntime, "ORTModel", task)
    model = exporter.from_pretrained(checkpoint, export=True)
    model.save_pretrained(folder)
    return model


@dataclass(frozen=True, kw_only=True)
class OptimumSpec(PreparedSpec):
    """optimum's graph in ONNX Runtime with default options."""

    environment: ClassVar[str] = "optimum"
    tasks: ClassVar[tuple[str, ...]] = tuple(AUTO_CLASSES)

    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        """Export, then optimize or quantize; keep the last graph only."""
        from tempfile import TemporaryDirectory

        from optimum.onnxruntime import ORTOptimizer, ORTQuantizer
        from optimum.onnxruntime.configuration import AutoOptimizationConfig, AutoQuantizationConfig

        task = Manifest.read(self.bundle).task.name
        level = self.config.settings.get("level")
        if level is None and self.config.precision == "fp32":
            export_with_optimum(self.checkpoint, task, folder)
            return
        with TemporaryDirectory(dir=folder) as plain:
            model = export_with_optimum(self.checkpoint, task, Path(plain))
            if level is not None:
                config = getattr(AutoOptimizationConfig, level)()
                ORTOptimizer.from_pretrained(model).optimize(save_dir=folder, optimization_config=config)
                return
            quantization = getattr(AutoQuantizationConfig, INT8_PRESET)(is_static=False, per_channel=True)
            ORTQuantizer.from_pretrained(plain).quantize(save_dir=folder, quantization_config=quantization)

    def open_session(self, manifest: Manifest) -> tuple[Forward, int]:
        """Load the only graph in the folder."""
        (graph,) = self.files.glob("*.onnx")
        return onnx_session(graph, self.threads, manifest), graph.stat().st_size

    def open_streams(self, manifest: Manifest) -> Forward:
        """Load the graph again, with one thread for each caller."""
        return replace(self, threads=1).open_session(manifest)[0]
