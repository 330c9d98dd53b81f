"""A session on CUDA as a runner: one thread does all runs, and small batches run as captured CUDA graphs.

Tested with ONNX Runtime's CUDA provider on stand-ins for the CUDA libraries; not measured on a GPU yet.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from bert_runtime.bundle.manifest import Manifest
from bert_runtime.bundle.output_shape import check_output_shape
from bert_runtime.devices import Device, gpu_install_command
from bert_runtime.errors import BundleError, CudaUnavailableError
from bert_runtime.fork_guard import CUDA_LOST, ForkGuard
from bert_runtime.gpu.cuda_graphs import NO_GRAPH, CudaGraphs, run_options
from bert_runtime.gpu.cuda_provider import Provider, open_cuda_session
from bert_runtime.gpu.gpu_locks import capture_lock, gpu_lock
from bert_runtime.gpu.pinned_memory import StagingBuffer
from bert_runtime.gpu.shape_buckets import Shape, ShapeBuckets, unpad
from bert_runtime.numerics import FloatArray, IntArray
from bert_runtime.tokenization import Batch, check_ids

__all__ = ["CudaSession"]


class CudaSession:
    """A session for one graph on a GPU; a `bert_runtime.runner.Runner`.

    A shape is captured as a CUDA graph on its second use, if `shapes` has a bucket and room for it. All other batches
    run operator by operator. Safe to call from many threads, but not after a fork: a GPU runs one batch at a time. One
    worker thread does all runs, since ONNX Runtime keeps cuBLAS handles and CUDA graphs for each thread that ever ran.

    Args:
        path: the ONNX graph.
        manifest: the bundle's manifest, for inputs, output, `max_tokens` and `pad_token_id`.
        device: the GPU.
        shapes: the shapes to capture, by default `ShapeBuckets()`. A graph whose output has a data-dependent size, such
            as the number of masks, is never captured: it would need a copy to the host.
        preferred: see `open_cuda_session`.

    Raises:
        CudaUnavailableError: see `open_cuda_session`.
        BundleError: the graph cannot be loaded.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        device: Device,
        shapes: ShapeBuckets | None = None,
        *,
        preferred: Provider | None = None,
    ) -> None:
        self.threads = 1
        self.device_name = str(device)
        self._device = device
        self._max_tokens = manifest.max_tokens
        self._id_limits = manifest.id_limits
        self._output = manifest.output
        fixed_size = all(isinstance(axis, int) or axis in ("batch", "sequence") for axis in manifest.output.axes)
        chosen = shapes or ShapeBuckets()
        self._shapes = chosen if fixed_size else replace(chosen, batch_sizes=())
        capture = bool(self._shapes.batch_sizes)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"bert-{device.kind}-{device.index}")
        with gpu_lock(device.index):
            self._session = self._worker.submit(
                open_cuda_session, path, device, capture=capture, preferred=preferred
            ).result()
        found = {node.name: node.shape for node in self._session.get_outputs()}
        check_output_shape(path, found.get(manifest.output.name, ()), manifest.output)
        self._inputs = [node.name for node in self._session.get_inputs()]
        self._staging = StagingBuffer(self._inputs, manifest.pad_token_id, device)
        self._graphs = CudaGraphs(self._session, self._inputs, self._output, device, self._shapes.max_graphs)
        self._fork_guard = ForkGuard(CUDA_LOST)

    def run(self, batch: Batch) -> FloatArray:
        """Return the raw outputs of a batch, float32 [B, …].

        Raises:
            InputError: an id is out of range.
            ForkedSessionError: this process was forked from the one that opened the session.
            CudaUnavailableError: attention needs cuDNN, which is not found.
            BundleError: ONNX Runtime cannot run the graph on this batch, for example because memory runs out.
        """
        self._fork_guard.check()
        check_ids(batch, self._id_limits)
        batch_size, length = batch.input_ids.shape
        bucket = self._shapes.shape_for(batch_size, length, self._max_tokens)
        shape = bucket or (batch_size, self._shapes.align_length(length, self._max_tokens))
        try:
            array = self._worker.submit(self._run_padded, batch, shape, capture=bucket is not None).result()
        except Exception as error:  # see open_cuda_session
            if "cuDNN is unavailable" in str(error):  # shows when attention runs, not when it is loaded
                raise CudaUnavailableError(
                    f"attention on {self.device_name} needs cuDNN, which is not found; install it with: "
                    f"{gpu_install_command('cuda')}"
                ) from None
            raise BundleError(f"ONNX Runtime cannot run this graph on {[batch_size, length]} ids: {error}") from None
        return unpad(array, self._output.axes, batch)

    def _run_padded(self, batch: Batch, shape: Shape, *, capture: bool) -> FloatArray:
        """Return the output of a batch padded to `shape`, through a CUDA graph if `capture` and it is used again."""
        staged = self._staging.stage(batch, shape)
        if capture and self._graphs.is_due(shape):
            is_replay = self._graphs.is_captured(shape)
            with gpu_lock(self._device.index) if is_replay else capture_lock():
                array = self._graphs.run(staged)
            if array is not None:
                return array
        with gpu_lock(self._device.index):
            return self._run_operators(staged)

    def _run_operators(self, staged: IntArray) -> FloatArray:
        """Return the output of the graph for staged inputs [inputs, B, S], run operator by operator."""
        feed = dict(zip(self._inputs, staged, strict=True))
        outputs: FloatArray = self._session.run([self._output.name], feed, run_options(NO_GRAPH))[0]
        return outputs
