"""One ONNX Runtime session on TensorRT: engines are built for the GPU at hand, and kept for the next start.

Written against ONNX Runtime's documented options and those that the wheel lists; it has not run on a GPU yet.
"""

import logging
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np

from bert_runtime.bundle.manifest import Manifest, Variant
from bert_runtime.cache import cache_dir
from bert_runtime.devices import TENSORRT_PROVIDER, Device
from bert_runtime.gpu.cuda_session import CudaSession
from bert_runtime.gpu.shape_buckets import ShapeBuckets
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["MAX_BATCH_SIZE", "TensorrtSession", "engine_folder", "tensorrt_options"]

_log = logging.getLogger("bert_runtime")

MAX_BATCH_SIZE = 128
"""Rows of a run. An engine is built for up to these, times the model's positions, and takes memory for so many."""

_USUAL_SHAPE = (8, 128)
"""Rows and tokens that the engine is tuned for."""


def engine_folder(variant: Variant) -> Path | None:
    """Where a variant's engines are kept: the user's cache, as a bundle may be read-only, by graph and weights.

    `None`, with a warning, where nothing can be kept.
    """
    try:
        folder = cache_dir("tensorrt") / "-".join(asset.sha256[:16] for asset in variant.assets)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # the latter where there is no home
        _log.warning("TensorRT's engine cannot be kept, and is built at every start: %s", error)
        return None
    return folder


def tensorrt_options(variant: Variant, manifest: Manifest, device: Device) -> dict[str, str]:
    """Options of the TensorRT provider: precision, range of shapes, and where engines are kept.

    Without a range of shapes, an engine would be built anew for each that is larger or
    smaller than all before.
    """
    most = (MAX_BATCH_SIZE, manifest.max_tokens)
    usual = tuple(min(each) for each in zip(_USUAL_SHAPE, most, strict=True))
    folder = engine_folder(variant)

    def shapes(shape: tuple[int, ...]) -> str:
        return ",".join(f"{each.name}:{'x'.join(map(str, shape))}" for each in manifest.inputs)

    return {
        "device_id": str(device.index),
        "trt_fp16_enable": str(variant.precision == "fp16"),
        "trt_profile_min_shapes": shapes((1, 1)),
        "trt_profile_opt_shapes": shapes(usual),
        "trt_profile_max_shapes": shapes(most),
    } | (
        {
            "trt_engine_cache_enable": "True",
            "trt_engine_cache_path": str(folder),
            "trt_timing_cache_enable": "True",
            "trt_timing_cache_path": str(folder),
        }
        if folder is not None
        else {}
    )


class TensorrtSession:
    """Runs batches through TensorRT, at most `MAX_BATCH_SIZE` rows at once. Safe to call from many threads.

    Making the first one on a machine builds the engine, which takes minutes; later ones read it. What TensorRT does not
    take runs on CUDA.
    """

    def __init__(self, bundle: Path, manifest: Manifest, variant: Variant, device: Device) -> None:
        with suppress(ImportError):
            import_module("tensorrt_libs")  # finds the libraries that pip installed
        ahead = (TENSORRT_PROVIDER, tensorrt_options(variant, manifest, device))
        path, shapes = bundle / variant.model.file, ShapeBuckets(rows=())
        self._session = CudaSession(path, manifest, device, manifest.pad_token_id, shapes, ahead=ahead)
        self.threads = self._session.threads
        self.device_name = str(device)

    def run(self, batch: Batch) -> FloatArray:
        """Raw outputs float32 [B, …] of a batch; see `CudaSession.run`."""
        starts = range(0, len(batch.input_ids), MAX_BATCH_SIZE)
        parts = [
            self._session.run(Batch(*(each[start : start + MAX_BATCH_SIZE] for each in batch))) for start in starts
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
