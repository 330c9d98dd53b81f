"""The CUDA session with a fake ONNX Runtime session: CUDA graphs, padding, options and errors."""

import ctypes
import json
import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bert_runtime.gpu.cuda_provider as provider
import bert_runtime.gpu.cuda_session as cuda
from bert_runtime import BundleError, InputError, Manifest, load
from bert_runtime.cpu.session import Session, open_onnxruntime_session
from bert_runtime.devices import CPU, CUDA_PROVIDER, Device
from bert_runtime.errors import CudaUnavailableError, ForkedSessionError
from bert_runtime.gpu.cuda_provider import fallback_operators, open_cuda_session, provider_options
from bert_runtime.gpu.cuda_session import CudaSession
from bert_runtime.gpu.shape_buckets import ShapeBuckets
from bert_runtime.tokenization import Batch, check_ids

GOLDEN = Path(__file__).parents[2] / "fixtures/bundle.v1.json"
GPU = Device(kind="cuda", index=1)


class FakeValue:
    """A fake `OrtValue` on a GPU."""

    made = 0

    def __init__(self, shape: Any, dtype: Any, *device: Any) -> None:
        assert device == ("cuda", 1)
        self.array = np.full(shape, 7, dtype=dtype)
        self.num_updates = 0
        FakeValue.made += 1

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def update_inplace(self, array: Any) -> None:
        assert array.shape == self.array.shape
        self.array[:] = array
        self.num_updates += 1

    def numpy(self) -> Any:
        return self.array.copy()


class FakeSession:
    """Outputs the sum of each sequence's ids, and records graph id and shape of each call."""

    def __init__(self, per_token: bool = False) -> None:
        self.runs: list[tuple[str, tuple[int, ...]]] = []
        self.per_token = per_token

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in ("input_ids", "attention_mask")]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name="logits", shape=["batch", "tokens", 1] if self.per_token else ["batch", 1])]

    def compute(self, feed: dict[str, Any]) -> Any:
        kept = (feed["input_ids"] * feed["attention_mask"]).astype(np.float32)
        return kept[..., None] if self.per_token else kept.sum(axis=1, keepdims=True)

    def run(self, names: list[str], feed: dict[str, Any], options: Any) -> list[Any]:
        assert names == ["logits"]
        self.runs.append((options.entries["gpu_graph_id"], feed["input_ids"].shape))
        return [self.compute(feed)]

    def io_binding(self) -> Any:
        bound: dict[str, Any] = {}

        def bind_input(name: str, device: str, index: int, dtype: Any, shape: Any, address: int) -> None:
            assert (device, index, dtype) == ("cuda", 1, np.int64)
            memory = (ctypes.c_int64 * (shape[0] * shape[1])).from_address(address)
            bound[name] = np.frombuffer(memory, dtype=dtype).reshape(shape)

        return SimpleNamespace(bound=bound, bind_input=bind_input, bind_ortvalue_output=bound.__setitem__)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        feed = {name: binding.bound[name] for name in ("input_ids", "attention_mask")}
        self.runs.append((options.entries["gpu_graph_id"], feed["input_ids"].shape))
        binding.bound["logits"].array[:] = self.compute(feed)


class FakeRunOptions:
    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value


Opened = Callable[..., tuple[CudaSession, FakeSession]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Return `opened(axes, shapes)`, which opens a session over a `FakeSession`."""
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "OrtValue", SimpleNamespace(ortvalue_from_shape_and_type=FakeValue))
    monkeypatch.setattr(onnxruntime, "RunOptions", FakeRunOptions)

    def make(axes: tuple[Any, ...] = ("batch", 1), shapes: ShapeBuckets | None = None) -> Any:
        session = FakeSession(per_token="sequence" in axes)
        monkeypatch.setattr(cuda, "open_cuda_session", lambda path, device, **options: session)
        values = json.loads(GOLDEN.read_text(encoding="utf-8"))
        del values["manifest_sha256"]
        values["task"] = {"name": "replaced-token-detection"}  # whose settings do not say the output's width
        values["output"]["axes"] = list(axes)
        values["inputs"] = values["inputs"][:2]
        values["inputs"][0]["below"] = 100
        manifest = Manifest.from_json(json.dumps(values))
        return CudaSession(Path("model.fp16.onnx"), manifest, GPU, shapes), session

    return make


def batch(*rows: list[int]) -> Batch:
    ids = np.array(rows, dtype=np.int64)
    return Batch(ids, np.ones_like(ids), np.zeros_like(ids))


def test_a_shape_is_captured_on_its_second_use(opened: Opened) -> None:
    session, fake = opened()
    for rows in ([[5, 6]], [[7, 8, 9]], [[1] * 20], [[2] * 20, [3] * 20]):
        assert session.run(batch(*rows)).tolist() == [[sum(row)] for row in rows]
    assert fake.runs == [("-1", (1, 16)), ("1", (1, 16)), ("-1", (1, 32)), ("-1", (2, 32))]
    session.run(batch([1] * 20))
    session.run(batch([4]))
    assert fake.runs[4:] == [("2", (1, 32)), ("1", (1, 16))]


def test_the_calls_exist_in_onnxruntime(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same calls, with buffers on the CPU, where ONNX Runtime ignores the graph id."""
    monkeypatch.setattr(cuda, "open_cuda_session", lambda path, device, **options: open_onnxruntime_session(path, 1))
    path, manifest = classifier_bundle / "model.fp32.onnx", Manifest.read(classifier_bundle)
    session = CudaSession(path, manifest, CPU)
    plain = Session(path, manifest.output.name, 1)
    outputs = []
    for number in range(4):
        ids = batch([2, 5 + number, 3], [2, 3, 0])
        outputs.append((session.run(ids).copy(), plain.run(ids)))  # on the CPU, run returns the buffer itself
    for found, expected in outputs:
        assert found.shape == expected.shape == (2, 3)
        assert np.abs(found - expected).max() <= 1e-5
    with pytest.raises(InputError, match=r"input_ids must lie in 0 to \d+, found 1000"):
        session.run(batch([1000]))


def test_outputs_are_not_overwritten_by_the_next_batch(opened: Opened) -> None:
    session, _ = opened()
    first, second, third = (session.run(batch([number])) for number in (5, 6, 7))
    assert [array.tolist() for array in (first, second, third)] == [[[5]], [[6]], [[7]]]


def test_gpu_buffers_are_reused(opened: Opened) -> None:
    session, _ = opened()
    FakeValue.made = 0
    for _ in range(5):
        session.run(batch([1, 2]))
    assert FakeValue.made == 2  # one for all inputs and one for the output, once


def test_no_more_than_max_graphs_are_captured(opened: Opened) -> None:
    session, fake = opened(shapes=ShapeBuckets(max_graphs=1))
    for length in (10, 30, 60) * 3:
        session.run(batch([1] * length))
    captured = {shape for graph, shape in fake.runs if graph != "-1"}
    assert captured == {(1, 16)}


def test_large_batches_are_aligned_and_not_captured(opened: Opened) -> None:
    session, fake = opened()
    for _ in range(3):
        assert session.run(batch(*[[1] * 101] * 16)).tolist() == [[101]] * 16
    assert fake.runs == [("-1", (16, 104))] * 3


def test_outputs_of_data_dependent_size_are_not_captured(opened: Opened) -> None:
    session, fake = opened(axes=("masks", 1))
    for _ in range(3):
        session.run(batch([1, 2]))
    assert {graph for graph, _ in fake.runs} == {"-1"}


def test_padding_is_cut_off_outputs_per_token(opened: Opened) -> None:
    session, fake = opened(axes=("batch", "sequence", 1))
    for _ in range(3):
        assert session.run(batch([3, 4, 5]))[..., 0].tolist() == [[3, 4, 5]]
    assert [graph for graph, _ in fake.runs] == ["-1", "1", "1"]


@pytest.mark.parametrize(
    ("ids", "message"),
    [([3, 100], "input_ids must lie in 0 to 99, found 100"), ([-1, 100], "input_ids must lie in 0 to 99, found -1")],
)
def test_ids_are_checked_before_they_reach_the_gpu(opened: Opened, ids: list[int], message: str) -> None:
    session, fake = opened()
    with pytest.raises(InputError, match=message):
        session.run(batch(ids))
    assert fake.runs == []


def test_mask_values_above_one_are_refused() -> None:
    with pytest.raises(InputError, match="attention_mask must lie in 0 to 1, found 2"):
        check_ids(batch([1])._replace(attention_mask=np.array([[2]])), {"attention_mask": 2})


def test_a_forked_child_is_refused(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = opened()
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(ForkedSessionError, match="CUDA does not survive that"):
        session.run(batch([1]))


def test_errors_of_onnxruntime_become_bundle_errors(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    session, fake = opened()

    def out_of_memory(*arguments: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(fake, "run", out_of_memory)
    with pytest.raises(BundleError, match=r"cannot run this graph on \[1, 2\] ids: out of memory"):
        session.run(batch([1, 2]))


def test_a_failed_capture_is_never_replayed(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ONNX Runtime keeps the part of the graph that it has captured, and would replay that."""
    session, fake = opened()
    complete, graph_ids = fake.run_with_iobinding, []

    def fail_once(binding: Any, options: Any) -> None:
        graph_ids.append(options.entries["gpu_graph_id"])
        if len(graph_ids) == 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        complete(binding, options)

    monkeypatch.setattr(fake, "run_with_iobinding", fail_once)
    with caplog.at_level(logging.WARNING, "bert_runtime"):
        for number in range(5):
            assert session.run(batch([number, 6])).tolist() == [[number + 6]]
    assert "batches of (1, 16) run without a CUDA graph, since one failed: operation not permitted" in caplog.text
    for _ in range(2):
        assert session.run(batch([1] * 20)).tolist() == [[20]]
    assert graph_ids == ["1", "2"]


def test_one_thread_does_all_runs(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime keeps handles of cuBLAS and captured graphs for every thread that ever ran a session."""
    session, fake = opened()
    threads, compute = set(), fake.compute

    def record_thread(feed: dict[str, Any]) -> Any:
        threads.add(threading.get_ident())
        return compute(feed)

    monkeypatch.setattr(fake, "compute", record_thread)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: session.run(batch([number] * 3)).item(), range(40)))
    assert found == [3 * number for number in range(40)]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_missing_cudnn_is_named(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    session, fake = opened()

    def no_cudnn(*arguments: Any) -> Any:
        raise RuntimeError("NOT_IMPLEMENTED : cuDNN is unavailable or disabled for CUDA Execution Provider: dlopen …")

    monkeypatch.setattr(fake, "run", no_cudnn)
    with pytest.raises(CudaUnavailableError, match=r"attention on cuda:1 needs cuDNN.*pip install .*\[gpu\]'"):
        session.run(batch([1, 2]))


def test_provider_options_keep_fp32_exact() -> None:
    options = provider_options(GPU, capture=True)
    assert (options["device_id"], options["use_tf32"], options["enable_cuda_graph"]) == ("1", "0", "1")
    assert options["sdpa_kernel"] == "19"
    assert provider_options(GPU, capture=False)["enable_cuda_graph"] == "0"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("", "there is no such GPU, or its driver is too old"),
        ("Failed to load libcublas.so.13\nPlease follow …", "Failed to load libcublas.so.13"),
    ],
)
def test_a_session_that_fell_back_is_an_error(
    classifier_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    printed: str,
    reason: str,
) -> None:
    """ONNX Runtime, asked for a provider it cannot open, opens the session on the CPU."""
    import onnxruntime

    opened = onnxruntime.InferenceSession

    def on_the_cpu(path: Path, options: Any, providers: Any, **others: Any) -> Any:
        assert providers == [(CUDA_PROVIDER, provider_options(GPU, capture=False)), "CPUExecutionProvider"]
        return opened(path, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(provider, "require_cuda", lambda: None)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print(printed, end=""))  # noqa: T201
    monkeypatch.setattr(onnxruntime, "InferenceSession", on_the_cpu)
    with pytest.raises(CudaUnavailableError, match=r"cuda:1 was asked for, and ONNX Runtime .* could not open it") as e:
        open_cuda_session(classifier_bundle / "model.fp32.onnx", GPU, capture=False)
    assert f"could not open it: {reason}. Install the libraries" in str(e.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "reason",
    [
        "CUDA failure 100: no CUDA-capable device is detected",
        "CUDA failure 2: out of memory",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
        "Failed to allocate memory for requested buffer of size 93763584",
    ],
)
def test_a_gpu_that_cannot_be_opened_is_unavailable_and_no_fault_of_the_bundle(
    classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """So that `device="auto"` takes the CPU."""
    import onnxruntime

    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : {reason} ; GPU=0 ; cudaSetDevice(0)")

    monkeypatch.setattr(provider, "require_cuda", lambda: None)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    with pytest.raises(CudaUnavailableError, match=reason):
        open_cuda_session(classifier_bundle / "model.fp32.onnx", GPU, capture=False)


def test_operators_on_the_cpu_are_reported(
    classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import onnxruntime

    opened = onnxruntime.InferenceSession

    def partly(path: Path, options: Any, providers: Any, **others: Any) -> Any:
        session = opened(path, options, providers=["CPUExecutionProvider"])
        session.get_providers = lambda: [CUDA_PROVIDER, "CPUExecutionProvider"]
        return session

    monkeypatch.setattr(provider, "require_cuda", lambda: None)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", partly)
    with caplog.at_level(logging.WARNING, "bert_runtime"):
        session = open_cuda_session(classifier_bundle / "model.fp32.onnx", GPU, capture=False)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("model.fp32.onnx runs on the CPU where cuda:1 was asked for: ")
    assert "3 Attention" in message  # one of them in two branches
    assert "Shape" not in fallback_operators(session)


def test_no_fallbacks_are_reported_where_onnxruntime_does_not_report_them() -> None:
    assert fallback_operators(SimpleNamespace()) == {}  # type: ignore[arg-type]


def test_a_bundle_without_a_cuda_variant_is_refused(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["onnxruntime"], "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(BundleError, match="no variant for cuda; export the checkpoint again with --target cuda"):
        load(classifier_bundle, device="cuda")
