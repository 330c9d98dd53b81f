"""CTranslate2: the encoder in INT8 or FP32, followed by the classifier in NumPy.

CTranslate2 returns hidden states and BERT's pooled vector. The remaining matmul, of the pooled vector or of every
hidden state with the classifier's weight, is timed too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from bert_bench.engines.engine_spec import EngineConfig, Forward, PreparedSpec, folder_bytes
from bert_bench.errors import BenchError
from bert_runtime import Manifest
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import Batch

__all__ = ["CONFIGS", "CTranslate2Spec"]

CONFIGS = (
    EngineConfig(
        name="ctranslate2-fp32", label="CTranslate2 FP32 (head in NumPy)", settings={"compute_type": "float32"},
    ),
    EngineConfig(
        name="ctranslate2-int8", label="CTranslate2 INT8 (head in NumPy)", precision="int8",
        settings={"compute_type": "int8"},
    ),
)  # fmt: skip

_HEADS = {"text-classification": "classifier", "token-classification": "classifier", "question-answering": "qa_outputs"}


@dataclass(frozen=True, kw_only=True)
class CTranslate2Spec(PreparedSpec):
    """The encoder of a BERT checkpoint, converted as CTranslate2's documentation says."""

    environment: ClassVar[str] = "ctranslate2"
    tasks: ClassVar[tuple[str, ...]] = tuple(_HEADS)

    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        """Convert the encoder and save the head's weights next to it."""
        from ctranslate2.converters import TransformersConverter
        from safetensors.numpy import load_file

        name = _HEADS[Manifest.read(self.bundle).task.name]
        weights = load_file(self.checkpoint / "model.safetensors")
        if f"{name}.weight" not in weights:
            raise BenchError(f"{self.checkpoint}: expected BERT's head {name}.weight, found none")
        weight, bias = (weights[f"{name}.{part}"].astype(np.float32) for part in ("weight", "bias"))
        quantization = self.config.settings["compute_type"]
        TransformersConverter(str(self.checkpoint)).convert(str(folder / "encoder"), quantization=quantization)
        np.savez(folder / "head.npz", weight=weight, bias=bias)

    def open_session(self, manifest: Manifest) -> tuple[Forward, int]:
        """Load the encoder with one worker that uses all of the engine's threads."""
        return self._load(manifest, inter_threads=1, intra_threads=self.threads), folder_bytes(self.files)

    def open_streams(self, manifest: Manifest) -> Forward:
        """Load the encoder again, with a worker on each thread."""
        return self._load(manifest, inter_threads=self.threads, intra_threads=1)

    def _load(self, manifest: Manifest, **threads: int) -> Forward:
        import ctranslate2

        encoder = ctranslate2.Encoder(
            str(self.files / "encoder"), device="cpu", compute_type=self.config.settings["compute_type"], **threads
        )
        head = np.load(self.files / "head.npz")
        weight, bias = np.ascontiguousarray(head["weight"].T), head["bias"]
        pooled = manifest.task.reads_first_token_only

        def forward(batch: Batch) -> FloatArray:
            ids, mask = (np.ascontiguousarray(array, dtype=np.int32) for array in batch[:2])
            view = ctranslate2.StorageView.from_array
            # forward_batch accepts token types as lists only; without them all are 0.
            types = batch.token_type_ids.tolist() if batch.token_type_ids.any() else None
            encoded = encoder.forward_batch(view(ids), view(mask.sum(axis=1, dtype=np.int32)), token_type_ids=types)
            output: FloatArray = (
                np.array(encoded.pooler_output if pooled else encoded.last_hidden_state) @ weight + bias
            )
            graph_output: FloatArray = manifest.task.graph_output(output, batch.input_ids)
            return graph_output

        return forward
