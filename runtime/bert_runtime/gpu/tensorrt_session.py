"""An ONNX Runtime session on TensorRT, whose engines are built on the machine at hand and cached.

Written against ONNX Runtime's documentation and the options that its wheel lists; it has not run on a GPU yet.
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
"""Sequences per batch that an engine accepts; larger batches are split.

An engine reserves memory for this many sequences of the model's full length. The value is a judgement: 128 sequences of
128 tokens are the 16,384 tokens of a GPU batch.
"""

_OPTIMIZED_SHAPE = (8, 128)
"""Batch size and sequence length that TensorRT optimizes the engine for. A judgement."""


def engine_folder(variant: Variant) -> Path | None:
    """Return the folder that a variant's engines are cached in, creating it.

    It lies in the user's cache, since a bundle may be read-only, and is named after the hashes of graph and weights.
    Where it cannot be created, that is logged and `None` returned.
    """
    try:
        folder = cache_dir("tensorrt") / "-".join(asset.sha256[:16] for asset in variant.assets)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError where there is no home directory
        _log.warning("TensorRT's engine cannot be cached, and is built again at every start: %s", error)
        return None
    return folder


def tensorrt_options(variant: Variant, manifest: Manifest, device: Device) -> dict[str, str]:
    """Return the options of ONNX Runtime's TensorRT provider: device, precision, range of shapes, engine cache.

    Without a range of shapes, TensorRT would build a new engine for each batch that is larger or smaller than all
    before.
    """
    largest = (MAX_BATCH_SIZE, manifest.max_tokens)
    optimized = tuple(min(sizes) for sizes in zip(_OPTIMIZED_SHAPE, largest, strict=True))
    folder = engine_folder(variant)

    def shapes(shape: tuple[int, ...]) -> str:
        return ",".join(f"{spec.name}:{'x'.join(map(str, shape))}" for spec in manifest.inputs)

    return {
        "device_id": str(device.index),
        "trt_fp16_enable": str(variant.precision == "fp16"),
        "trt_profile_min_shapes": shapes((1, 1)),
        "trt_profile_opt_shapes": shapes(optimized),
        "trt_profile_max_shapes": shapes(largest),
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
    """A session on TensorRT; a `bert_runtime.runner.Runner`. Operators that TensorRT lacks run on CUDA.

    The first session on a machine builds the engine, which takes minutes; later ones read it from the cache. Safe to
    call from many threads.

    Raises:
        CudaUnavailableError: there is no such GPU, or CUDA's or TensorRT's libraries are not found.
        BundleError: the graph cannot be loaded.
    """

    def __init__(self, bundle: Path, manifest: Manifest, variant: Variant, device: Device) -> None:
        with suppress(ImportError):
            import_module("tensorrt_libs")  # finds the libraries that pip installed
        provider = (TENSORRT_PROVIDER, tensorrt_options(variant, manifest, device))
        path, shapes = bundle / variant.model.file, ShapeBuckets(batch_sizes=())
        self._session = CudaSession(path, manifest, device, shapes, preferred=provider)
        self.threads = self._session.threads
        self.device_name = str(device)

    def run(self, batch: Batch) -> FloatArray:
        """Return the raw outputs of a batch, float32 [B, …]; see `CudaSession.run`."""
        starts = range(0, len(batch.input_ids), MAX_BATCH_SIZE)
        parts = [
            self._session.run(Batch(*(array[start : start + MAX_BATCH_SIZE] for array in batch))) for start in starts
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
