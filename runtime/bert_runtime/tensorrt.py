"""One ONNX Runtime session on TensorRT: engines are built for the GPU at hand, and kept for the next start.

Written against ONNX Runtime's documented options and those that the wheel lists; it has not run on a GPU yet.
"""

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np

from bert_runtime.buckets import GraphShapes
from bert_runtime.cuda import CudaSession
from bert_runtime.devices import TENSORRT_PROVIDER, Device
from bert_runtime.manifest import Manifest, sha256_file
from bert_runtime.tasks import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["MOST_ROWS", "TensorrtSession", "engine_folder", "tensorrt_options"]

MOST_ROWS = 128
"""Rows of a run. An engine is built for up to these, times the model's positions, and takes memory for so many."""

_USUAL_SHAPE = (8, 128)
"""Rows and tokens that the engine is tuned for."""


def engine_folder(graph: Path) -> Path:
    """Where a graph's engines are kept: the user's cache, since a bundle may be read-only, under the graph's hash."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "bert-export" / "tensorrt" / sha256_file(graph)[:16]


def tensorrt_options(graph: Path, manifest: Manifest, device: Device, *, half: bool) -> dict[str, str]:
    """Options of the TensorRT provider: precision, range of shapes, and where engines are kept.

    Normalization stays in FP32. Without a range of shapes, an engine would be built anew for each that is larger or
    smaller than all before.
    """
    most = (MOST_ROWS, manifest.max_tokens)
    usual = tuple(min(each) for each in zip(_USUAL_SHAPE, most, strict=True))
    folder = str(engine_folder(graph))

    def shapes(shape: tuple[int, ...]) -> str:
        return ",".join(f"{each.name}:{'x'.join(map(str, shape))}" for each in manifest.inputs)

    return {
        "device_id": str(device.index),
        "trt_fp16_enable": str(half),
        "trt_layer_norm_fp32_fallback": "True",
        "trt_profile_min_shapes": shapes((1, 1)),
        "trt_profile_opt_shapes": shapes(usual),
        "trt_profile_max_shapes": shapes(most),
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": folder,
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": folder,
    }


class TensorrtSession:
    """Runs batches through TensorRT, at most `MOST_ROWS` rows at once. Safe to call from many threads.

    Making the first one on a machine builds the engine, which takes minutes; later ones read it. What TensorRT does not
    take runs on CUDA.
    """

    def __init__(self, path: Path, manifest: Manifest, device: Device, pad_token_id: int, *, half: bool) -> None:
        with suppress(ImportError):
            import_module("tensorrt_libs")  # finds the libraries that pip installed
        engine_folder(path).mkdir(parents=True, exist_ok=True)
        options = tensorrt_options(path, manifest, device, half=half)
        self._session = CudaSession(
            path, manifest, device, pad_token_id, GraphShapes(rows=()), ahead=(TENSORRT_PROVIDER, options)
        )
        self.threads = self._session.threads
        self.place = str(device)

    def run(self, batch: Batch) -> FloatArray:
        """Raw outputs float32 [B, …] of a batch; see `CudaSession.run`."""
        starts = range(0, len(batch.input_ids), MOST_ROWS)
        parts = [self._session.run(Batch(*(each[start : start + MOST_ROWS] for each in batch))) for start in starts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
