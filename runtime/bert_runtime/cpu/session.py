"""An ONNX Runtime session on the CPU."""

import mmap
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from bert_runtime.bundle.onnx_file import read_onnx_file
from bert_runtime.cpu.native_kernels import register_kernels
from bert_runtime.errors import BundleError, DeploymentError, InputError, MissingExtraError
from bert_runtime.fork_guard import THREADS_LOST, ForkGuard, let_children_exit
from bert_runtime.machine import has_instruction_set
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

__all__ = ["MAX_THREADS", "MIN_ONNXRUNTIME", "Session", "open_onnxruntime_session", "weights_in_memory"]

MIN_ONNXRUNTIME = (1, 24)
"""The oldest release that the tests run with, as in `pyproject.toml`. Those before 1.17 cannot run native kernels."""

MAX_THREADS = 1024
"""More than any processor has cores. ONNX Runtime starts as many threads as it is told, until memory runs out."""

SPIN_MICROSECONDS = 200
"""How long a session's threads wait for work without giving up their core, µs: within a call, and after it about as
long as a caller takes to its next text. A thread that has given it up takes some 50 µs to wake, of the 600 that
MiniLM takes for 16 tokens."""


@contextmanager
def weights_in_memory(options: "SessionOptions", graph: str | Path, *, mapped: bool = True) -> Iterator[None]:
    """Within the block, let `options` open a graph with the contents of those files that it cannot or shall not map.

    ONNX Runtime maps external data from regular files. It refuses links that lead out of the graph's folder, as in a
    download cache. This passes such files as mapped memory instead, which costs a copy of the weights per session.

    Args:
        options: the options that the session is opened with, inside the block.
        graph: path of the ONNX file.
        mapped: whether regular files may be mapped for as long as the session lives. Otherwise they are read.
    """
    files = [path for path in Path(graph).parent.iterdir() if path.is_file() and (path.is_symlink() or not mapped)]
    if files:
        external = read_onnx_file(graph).external_files
        files = sorted(path for path in files if path.name in external and path.stat().st_size)
    contents = []
    for path in files:
        with path.open("rb") as stream:
            contents.append(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if mapped else stream.read())
    if files:
        names, sizes = [path.name for path in files], [len(content) for content in contents]
        options.add_external_initializers_from_files_in_memory(names, contents, sizes)
    yield


def open_onnxruntime_session(
    path: str | Path,
    threads: int,
    *,
    int8: bool = False,
    kernels: bool = True,
    mapped: bool = True,
    prepack: bool = True,
) -> "InferenceSession":
    """Open an ONNX Runtime session on the CPU.

    Args:
        path: the ONNX graph.
        threads: threads per operator.
        int8: whether the graph has int8 matmuls; these are then exact on processors without VNNI, too.
        kernels: whether native kernels run the functions that they exist for, see `bert_runtime.cpu.native_kernels`.
        mapped: see `weights_in_memory`.
        prepack: whether ONNX Runtime keeps copies of weights in the layout of its matmuls, which saves time. Otherwise
            it reads them from where they are mapped, shared with other sessions and processes.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        DeploymentError: onnxruntime is too old.
        BundleError: the graph cannot be loaded.
    """
    onnxruntime = _import_onnxruntime()
    options = _cpu_options(threads)
    disabled = []
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if kernels:
        register_kernels(options)
    if int8 and not has_instruction_set("vnni"):
        # Without VNNI, u8×s8 products saturate. This entry makes ONNX Runtime convert the weights to unsigned, for
        # kernels that do not. It acts at the extended level only, which would also fuse LayerNormalization with its
        # residual; that fusion is unwanted.
        options.add_session_config_entry("session.x64quantprecision", "1")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        disabled = ["SkipLayerNormFusion"]
    try:
        with weights_in_memory(options, path, mapped=mapped):
            session = onnxruntime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
            )
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        raise BundleError(f"{path}: ONNX Runtime {onnxruntime.__version__} cannot load this graph: {error}") from None
    let_children_exit(session)
    return session


def _import_onnxruntime() -> ModuleType:
    """Return the module onnxruntime; raise where it is not installed or too old for the graphs of bundles."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "cpu", "running a model") from None
    if _version(onnxruntime) < MIN_ONNXRUNTIME:
        needed = ".".join(map(str, MIN_ONNXRUNTIME))
        raise DeploymentError(
            f"expected onnxruntime {needed} or newer, found {onnxruntime.__version__}; "
            f"install it with: pip install 'onnxruntime>={needed}'"
        )
    return onnxruntime


def _version(onnxruntime: ModuleType) -> tuple[int, ...]:
    """Return the major and the minor version."""
    return tuple(map(int, re.findall(r"\d+", onnxruntime.__version__)[:2]))


def _cpu_options(threads: int) -> "SessionOptions":
    """Return the options that all CPU sessions share."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # The exporter has already done what the extended level would do, and that level undoes some of it.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    # Memory patterns are cached per input shape: with varying lengths, memory would grow with every new shape.
    options.enable_mem_pattern = False
    # Threads that spin between calls take cores from whatever else runs in the process: for a moment, or not at all
    # with releases that know no moment.
    if _version(onnxruntime) >= (1, 26):
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_MICROSECONDS))
    else:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


class Session:
    """A CPU session for one graph; a `bert_runtime.runner.Runner`.

    Safe to call from many threads, but not after a fork.

    Args:
        path: the ONNX graph.
        output: name of the output to compute.
        threads: threads per operator, 1 to `MAX_THREADS`.
        int8: see `open_onnxruntime_session`.
        kernels: see `open_onnxruntime_session`.
        mapped: see `weights_in_memory`.
        prepack: see `open_onnxruntime_session`.

    Raises:
        InputError: `threads` is out of range.
        MissingExtraError: onnxruntime is not installed.
        DeploymentError: onnxruntime is too old.
        BundleError: the graph cannot be loaded, or has no such output.
    """

    def __init__(
        self,
        path: Path,
        output: str,
        threads: int,
        *,
        int8: bool = False,
        kernels: bool = True,
        mapped: bool = True,
        prepack: bool = True,
    ) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise InputError(f"threads must lie in 1 to {MAX_THREADS}, found {threads}")
        self.threads = threads
        self.kernels = kernels
        self.device_name = f"{threads} threads"
        self._session = open_onnxruntime_session(
            path, threads, int8=int8, kernels=kernels, mapped=mapped, prepack=prepack
        )
        found = {node.name for node in self._session.get_inputs()}
        self._inputs = [(index, name) for index, name in enumerate(Batch._fields) if name in found]
        shapes = {node.name: node.shape for node in self._session.get_outputs()}
        if output not in shapes:
            raise BundleError(f"{path}: expected an output {output!r}, found {', '.join(shapes)}")
        self.output_shapes: dict[str, list[int | str | None]] = shapes
        """Sizes of each output's axes; a name or `None` where one varies."""
        self._outputs = [output]
        self._fork_guard = ForkGuard(THREADS_LOST)

    def run(self, batch: Batch) -> FloatArray:
        """Return the raw outputs of a batch, float32 [B, …].

        Raises:
            ForkedSessionError: this process was forked from the one that opened the session.
            BundleError: ONNX Runtime cannot run the graph on this batch.
        """
        return self.run_outputs(batch, self._outputs)[0]

    def run_outputs(self, batch: Batch, names: Sequence[str]) -> list[FloatArray]:
        """Return some of the graph's outputs by name; see `run`."""
        self._fork_guard.check()
        feed = {name: batch[index] for index, name in self._inputs}
        try:
            outputs: list[FloatArray] = self._session.run(names, feed)
        except Exception as error:  # see open_onnxruntime_session
            raise BundleError(
                f"ONNX Runtime cannot run this graph on {list(batch.input_ids.shape)} ids: {error}"
            ) from None
        return outputs
