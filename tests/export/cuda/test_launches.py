"""How many kernels a layer launches: graphs of two sizes run by the real onnxruntime-gpu on stub CUDA libraries."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest

from bert_export.capture import capture
from bert_export.cuda import convert_to_fp16, drop_attention_mask, fuse_for_cuda, pack
from bert_export.fusion import fuse

from ...runtime.gpu.stub_libraries import build_stubs
from ..toy_models import CONFIG, MEAN, toy_model

pytestmark = [pytest.mark.gpu_stub, pytest.mark.timeout(300)]

KERNELS_PER_LAYER = 9

RUN = """
import os, sys
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
options.log_severity_level = 3
cuda = ("CUDAExecutionProvider", {"sdpa_kernel": "19"})
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=[cuda, "CPUExecutionProvider"])
ones = np.ones((4, 16), dtype=np.int64)
feeds = {"input_ids": ones, "attention_mask": ones, "token_type_ids": ones * 0}
open(os.environ["STUB_CUDA_LOG"], "w").close()
session.run(None, {node.name: feeds[node.name] for node in session.get_inputs()})
"""


def padded_graph(num_layers: int, padding: str) -> ir.Model:
    """Return an FP16 graph whose heads have 8 channels, as fused attention needs."""
    config = replace(CONFIG, hidden_size=32, num_layers=num_layers)
    task = replace(MEAN, dimensions=32)
    graph = capture(toy_model(task, config))
    fuse(graph, config, task)
    fuse_for_cuda(graph, config)
    convert_to_fp16(graph)
    if padding == "packed":
        pack(graph, config)
    if padding == "unmasked":
        drop_attention_mask(graph, config)
    return graph


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    wheel = os.environ.get("BERT_EXPORT_ONNXRUNTIME_GPU")
    if wheel is None or not Path(wheel, "onnxruntime").is_dir() or not (shutil.which("gcc") and shutil.which("nm")):
        pytest.skip("needs gcc, nm, and onnxruntime-gpu in BERT_EXPORT_ONNXRUNTIME_GPU: make test-gpu-stub")
    folder = tmp_path_factory.mktemp("stubs")
    build_stubs(Path(wheel, "onnxruntime/capi/libonnxruntime_providers_cuda.so"), folder)
    path = os.pathsep.join([wheel, *sys.path])
    log = str(folder / "calls.log")
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": path, "STUB_CUDA_LOG": log}


@pytest.mark.parametrize("padding", ["masked", "unmasked", "packed"])
def test_layers_launch_nine_kernels(environment: dict[str, str], padding: str, tmp_path: Path) -> None:
    """The difference of a graph with one layer more, so that embeddings and pooling do not count."""
    launches = []
    for num_layers in (1, 2):
        path = tmp_path / f"{num_layers}.onnx"
        ir.save(padded_graph(num_layers, padding), path)
        subprocess.run([sys.executable, "-c", RUN, path], env=environment, check=True)
        log = Path(environment["STUB_CUDA_LOG"]).read_text(encoding="utf-8")
        launches.append(len(re.findall(r"^(?:kernel|matmul) ", log, re.MULTILINE)))
    assert launches[1] - launches[0] == KERNELS_PER_LAYER, launches
