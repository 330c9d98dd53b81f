"""One ONNX Runtime session, opened the way that measured fastest."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bert_runtime.cpu.native_kernels import register_kernels
from bert_runtime.errors import BundleError, ForkedSessionError, InputError, MissingExtraError
from bert_runtime.machine import has_instruction_set
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

__all__ = ["MAX_THREADS", "Session", "linked_weights", "open_onnxruntime_session"]

MAX_THREADS = 1024
"""More threads than any processor has cores; ONNX Runtime would start as many as it is told, to the last byte."""


@contextmanager
def linked_weights(options: "SessionOptions", graph: str | Path) -> Iterator[None]:
    """Lets a session that is opened within the block read weights beside its graph that are links.

    ONNX Runtime maps weights that are files, and refuses those that a link leads out of the folder to, as in a cache of
    downloads. From memory it takes a copy of them for each session. Links that lead nowhere, of variants that are not
    opened perhaps, are left to it.
    """
    links = (each for each in Path(graph).parent.glob("*.onnx.data") if each.is_symlink())
    files = [each for each in links if each.is_file() and each.stat().st_size]
    contents = []
    for each in files:
        with each.open("rb") as stream:
            contents.append(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    if files:
        names, sizes = [each.name for each in files], [len(each) for each in contents]
        options.add_external_initializers_from_files_in_memory(names, contents, sizes)
    yield


def open_onnxruntime_session(
    path: str | Path, threads: int, *, int8: bool = False, kernels: bool = True
) -> "InferenceSession":
    """A CPU session for the graph in `path`, running each operator on `threads` threads.

    `int8` says that the graph has integer products, which are then exact on every processor, and `kernels` whether our
    own may run what they can. Raises `MissingExtraError` without onnxruntime and `BundleError` where the graph cannot
    be loaded.
    """
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "cpu", "running a model") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # The exporter has done what the extended level would do, and it undoes some of it.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    # Patterns are remembered per input shape: with lengths that vary, memory would grow with every new one.
    options.enable_mem_pattern = False
    # Threads that spin between calls steal cores from whatever else runs in the process.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    disabled = []
    if kernels:
        register_kernels(options)
    if int8 and not has_instruction_set("vnni"):
        # ONNX Runtime then multiplies by unsigned weights, in kernels that do not saturate. It does so at the extended
        # level, of which we do not want the fusion of LayerNormalization and its residual.
        options.add_session_config_entry("session.x64quantprecision", "1")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        disabled = ["SkipLayerNormFusion"]
    try:
        with linked_weights(options, path):
            return onnxruntime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
            )
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        raise BundleError(f"{path}: ONNX Runtime {onnxruntime.__version__} cannot load this graph: {error}") from None


class Session:
    """Runs batches through one graph. Safe to call from many threads, but not after a fork."""

    def __init__(self, path: Path, output: str, threads: int, *, int8: bool = False, kernels: bool = True) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise InputError(f"threads must lie in 1 to {MAX_THREADS}, found {threads}")
        self.threads = threads
        self.device_name = f"{threads} threads"
        self._session = open_onnxruntime_session(path, threads, int8=int8, kernels=kernels)
        self._inputs = frozenset(each.name for each in self._session.get_inputs())
        names = [each.name for each in self._session.get_outputs()]
        if output not in names:
            raise BundleError(f"{path}: expected an output {output!r}, found {', '.join(names)}")
        self._outputs = [output]
        self._pid = os.getpid()

    def run(self, batch: Batch) -> FloatArray:
        """Raw outputs float32 [B, …] of a batch."""
        self.check_process()
        feed = {name: array for name, array in batch._asdict().items() if name in self._inputs}
        try:
            outputs: FloatArray = self._session.run(self._outputs, feed)[0]
        except Exception as error:  # see open_onnxruntime_session
            raise BundleError(
                f"ONNX Runtime cannot run this graph on {list(batch.input_ids.shape)} ids: {error}"
            ) from None
        return outputs

    def check_process(self) -> None:
        """Raises `ForkedSessionError` in a process that was forked from the one that made this."""
        if os.getpid() != self._pid:
            raise ForkedSessionError(
                "this model was loaded before the process forked, and its threads do not exist in the child; "
                "call bert_runtime.load in each worker (gunicorn: without --preload)"
            )
