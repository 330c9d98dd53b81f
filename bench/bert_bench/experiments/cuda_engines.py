"""Engines of the CUDA experiment: PyTorch in FP16, the exported bundle in every padding mode, and optimum O4."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from bert_bench.engines.onnxruntime_plain import onnx_session
from bert_bench.engines.optimum import CONFIGS, OptimumSpec
from bert_models import TaskModel, load_model, open_checkpoint
from bert_runtime import Manifest
from bert_runtime.bundle.manifest import PACKED, UNMASKED, Variant
from bert_runtime.devices import CUDA_PROVIDER, Device
from bert_runtime.gpu.cuda_provider import provider_options
from bert_runtime.gpu.cuda_session import CudaSession
from bert_runtime.gpu.shape_buckets import NO_BUCKETS, ShapeBuckets, is_full, is_right_padded
from bert_runtime.loading import open_variant
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["DEFAULT_ENGINES", "EAGER", "ENGINES", "TENSORRT", "Engine", "RunBatch", "open_engines", "torch_engine"]

RunBatch = Callable[[Batch], FloatArray]
"""Inference call: token ids in host memory to raw outputs in host memory."""

EAGER = "PyTorch eager"
"""Name of the baseline of speed-ups."""

TENSORRT = "bundle, TensorRT"
"""Name of the engine that needs a bundle for TensorRT, too."""

DEFAULT_ENGINES = (
    EAGER,
    "torch.compile",
    "optimum O4",
    "bundle",
    "bundle, no CUDA graphs",
    "bundle, packed",
    "bundle, unmasked",
)
ENGINES = (*DEFAULT_ENGINES, TENSORRT)

_RECOMPILE_LIMIT = 64
"""Compilations per function: each shape of a batch takes one. After 8, torch's default, it would run eagerly."""


@dataclass(frozen=True)
class Engine:
    """An inference call and its limits."""

    run: RunBatch
    accepts: Callable[[Batch], bool] = lambda batch: True
    """Whether the engine can run a batch."""
    thread_safe: bool = True
    """Whether several threads may call it at the same time."""
    count_fallbacks: Callable[[], int] = lambda: 0
    """Counts how often the engine has run in another way than its name says."""

    @property
    def accepts_any_padding(self) -> bool:
        """Whether the engine can run batches with padding on any side."""
        left_padded = Batch(*(np.array([[0, 1]]) for _ in range(3)))
        return self.accepts(left_padded)


def torch_engine(model: TaskModel, device: str, *, compiled: bool = False) -> RunBatch:
    """Return the inference call of a PyTorch model in FP16.

    Args:
        model: moved to `device` and converted to FP16 in place.
        device: PyTorch device, such as `cuda:0`.
        compiled: use `torch.compile(mode="reduce-overhead")`, which captures a CUDA graph per shape. The call raises an
            error where it would run eagerly: in part, or since there are too many shapes.

    """
    fp16_model = model.to(device, torch.float16).eval()
    forward: Callable[..., torch.Tensor] = fp16_model
    if compiled:
        # Assigned, not patched: torch reads them at each call, on whichever thread.
        torch._dynamo.config.recompile_limit = _RECOMPILE_LIMIT
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        forward = torch.compile(fp16_model, mode="reduce-overhead", dynamic=False, fullgraph=True)

    def run(batch: Batch) -> FloatArray:
        with torch.inference_mode():
            tensors = [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in batch]
            outputs = model.task.graph_output(forward(*tensors), tensors[0])
            array: FloatArray = outputs.float().cpu().numpy()  # waits for the GPU
        return array

    return run


def _skipped_cuda_graphs() -> int:
    """Count the graphs that `torch.compile` compiled without capturing them."""
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["cudagraph_skips"])


def open_engines(
    checkpoint: str,
    bundle: Path,
    scratch: Path,
    device: Device,
    probe: Batch,
    names: Sequence[str] = DEFAULT_ENGINES,
) -> tuple[dict[str, Engine], dict[str, str]]:
    """Open every engine and run it once.

    Args:
        checkpoint: folder or hub id of the checkpoint; optimum needs a folder.
        bundle: bundle exported from it for CUDA and TensorRT.
        scratch: folder for optimum's graph.
        device: the GPU.
        probe: batch without padding to run.
        names: names of the engines to open.

    Returns:
        The engines by name, and of those that fail to open or to run, the error by name. PyTorch eager, the baseline,
        raises its error instead.

    """
    engines, missing = {}, {}
    openers = _openers(checkpoint, bundle, scratch, device)
    for name in dict.fromkeys(names):
        try:
            engine = openers[name]()
            engine.run(probe)  # some fail only here
            engines[name] = engine
        except Exception as error:  # engines raise errors of any type; the report lists them
            if name == EAGER:
                raise
            missing[name] = f"{type(error).__name__}: {error}"
    return engines, missing


def _openers(checkpoint: str, bundle: Path, scratch: Path, device: Device) -> dict[str, Callable[[], Engine]]:
    """Return a function per engine that opens it."""
    source, manifest = open_checkpoint(checkpoint), Manifest.read(bundle)
    padded = manifest.variant("fp16", "cuda")
    padding_variants = manifest.padding_variants(padded)

    def pytorch(*, compiled: bool = False) -> RunBatch:
        return torch_engine(load_model(source, source.task()), f"cuda:{device.index}", compiled=compiled)

    def cuda_session(variant: Variant, buckets: ShapeBuckets) -> RunBatch:
        return CudaSession(bundle / variant.model.file, manifest, device, buckets).run

    def tensorrt() -> RunBatch:
        tensorrt_device = Device(kind="tensorrt", index=device.index)
        return open_variant(bundle, manifest, manifest.variant("fp16", "tensorrt"), tensorrt_device).session.run

    return {
        EAGER: lambda: Engine(pytorch()),
        "torch.compile": lambda: Engine(
            pytorch(compiled=True), thread_safe=False, count_fallbacks=_skipped_cuda_graphs
        ),  # CUDA graphs belong to a thread
        "optimum O4": lambda: Engine(_optimum_o4(Path(checkpoint), bundle, manifest, scratch / "optimum", device)),
        "bundle": lambda: Engine(open_variant(bundle, manifest, padded, device).session.run),
        "bundle, no CUDA graphs": lambda: Engine(cuda_session(padded, ShapeBuckets(batch_sizes=()))),
        "bundle, packed": lambda: Engine(cuda_session(padding_variants[PACKED], NO_BUCKETS), is_right_padded),
        "bundle, unmasked": lambda: Engine(cuda_session(padding_variants[UNMASKED], NO_BUCKETS), is_full),
        TENSORRT: lambda: Engine(tensorrt()),
    }


def _optimum_o4(checkpoint: Path, bundle: Path, manifest: Manifest, folder: Path, device: Device) -> RunBatch:
    """Export the checkpoint with optimum's optimization level O4 into `folder` and open it."""
    config = next(config for config in CONFIGS if config.name == "optimum-o4")
    folder.mkdir()
    spec = OptimumSpec(bundle=bundle, threads=1, max_batch_tokens=None, config=config, checkpoint=checkpoint)
    spec.prepare(folder, ())
    (graph,) = folder.glob("*.onnx")
    onnxruntime.preload_dlls()
    return onnx_session(graph, 1, manifest, [(CUDA_PROVIDER, provider_options(device, capture=False))])
