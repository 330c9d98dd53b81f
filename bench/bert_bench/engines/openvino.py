"""OpenVINO: FP32, bf16, and INT8 quantized with NNCF."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_bench.engines.engine_spec import EngineConfig, Forward, PreparedSpec, folder_bytes
from bert_bench.engines.transformers_models import AUTO_CLASSES, auto_model
from bert_runtime import Manifest
from bert_runtime.loading import bundle_tokenizer
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import Batch, pad

__all__ = ["CONFIGS", "OpenVINOSpec"]

CONFIGS = (
    EngineConfig(name="openvino-fp32", label="OpenVINO FP32"),
    EngineConfig(name="openvino-bf16", label="OpenVINO bf16", precision="bf16"),
    EngineConfig(name="openvino-int8", label="OpenVINO INT8 (NNCF, static)", precision="int8"),
    EngineConfig(
        name="openvino-int8-throughput",
        label="OpenVINO INT8 (NNCF, static), throughput hint",
        precision="int8",
        settings={"hint": "THROUGHPUT"},
    ),
)

_GRAPH = "model.xml"


@dataclass(frozen=True, kw_only=True)
class OpenVINOSpec(PreparedSpec):
    """The checkpoint's `transformers` model, converted and compiled for latency as OpenVINO's documentation says.

    The throughput hint runs several requests at a time on fewer threads each, for concurrent clients.
    """

    environment: ClassVar[str] = "openvino"
    tasks: ClassVar[tuple[str, ...]] = tuple(AUTO_CLASSES)
    needs_calibration: ClassVar[bool] = True

    @property
    def artifact_config(self) -> EngineConfig:
        """The INT8 or the FP32 configuration: bf16 and the hint are options of compilation, not of conversion."""
        return CONFIGS[2] if self.config.precision == "int8" else CONFIGS[0]

    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        """Convert; for INT8, quantize with NNCF's transformer scheme on the calibration texts."""
        import openvino
        import torch
        import transformers

        manifest = Manifest.read(self.bundle)
        model = auto_model(transformers, "AutoModel", manifest.task.name).from_pretrained(self.checkpoint).eval()
        ids = torch.ones((2, 7), dtype=torch.int64)
        example = {"input_ids": ids, "attention_mask": ids}
        if getattr(model.config, "type_vocab_size", 0) > 0:
            example["token_type_ids"] = torch.zeros_like(ids)
        converted = openvino.convert_model(model, example_input=example)
        if self.config.precision == "int8":
            import nncf

            feeds = list(self._feeds(texts, manifest, _input_names(converted)))
            converted = nncf.quantize(
                converted, nncf.Dataset(feeds), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(feeds)
            )
        openvino.save_model(converted, folder / _GRAPH, compress_to_fp16=False)

    def _feeds(self, texts: Sequence[TextInput], manifest: Manifest, names: set[str]) -> Iterator[dict[str, Any]]:
        """Yield the inputs of each text's first window: batch size 1, no padding."""
        tokenizer = bundle_tokenizer(self.bundle, manifest)
        for windows in tokenizer.encode(texts):
            batch = pad(windows[:1], tokenizer.pad_token_id)
            yield {name: array for name, array in batch._asdict().items() if name in names}

    def open_session(self, manifest: Manifest) -> tuple[Forward, int]:
        """Compile the graph; concurrent calls use an inference request each, taken from a pool."""
        hint = self.config.settings.get("hint", "LATENCY")
        return self._compile(manifest, PERFORMANCE_HINT=hint), folder_bytes(self.files)

    def open_streams(self, manifest: Manifest) -> Forward:
        """Compile the graph again, with a stream on each thread."""
        return self._compile(manifest, PERFORMANCE_HINT="THROUGHPUT", NUM_STREAMS=str(self.threads))

    def _compile(self, manifest: Manifest, **options: str) -> Forward:
        from queue import Empty, SimpleQueue

        import openvino

        settings = {
            **options,
            "INFERENCE_NUM_THREADS": self.threads,
            # OpenVINO's default is bf16 where the CPU supports it.
            "INFERENCE_PRECISION_HINT": "bf16" if self.config.precision == "bf16" else "f32",
        }
        graph = openvino.Core().read_model(self.files / _GRAPH)
        compiled = openvino.compile_model(graph, "CPU", settings)
        names = _input_names(graph)
        idle_requests: SimpleQueue[Any] = SimpleQueue()

        def forward(batch: Batch) -> FloatArray:
            feed = {name: array for name, array in batch._asdict().items() if name in names}
            try:
                request = idle_requests.get_nowait()
            except Empty:
                request = compiled.create_infer_request()
            arrays = [np.array(array) for array in request.infer(feed, share_inputs=True).values()]
            idle_requests.put(request)
            output: FloatArray = arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=-1)
            graph_output: FloatArray = manifest.task.graph_output(output, batch.input_ids)
            return graph_output

        return forward


def _input_names(graph: Any) -> set[str]:
    """Return all names of a graph's inputs."""
    return {name for value in graph.inputs for name in value.names}
