"""Triton's Python backend, with dynamic batching, over sentence-transformers' ONNX backend: FOLDER PORT.

Writes a model repository into the working directory and replaces this process by the server of nvidia-pytriton's wheel.
(PyTriton's own way to bind a Python function needs a newer patch release of Python than its stub of Python 3.11 has.)
"""

import os
import shutil
import sys
from pathlib import Path

import pytriton

MODEL = """
from pathlib import Path

import numpy as np
import triton_python_backend_utils as triton
from sentence_transformers import SentenceTransformer


class TritonPythonModel:
    def initialize(self, args):
        folder = Path({folder!r})
        (graph,) = folder.glob("onnx/*.onnx")
        self.model = SentenceTransformer(
            str(folder), backend="onnx", device="cpu", model_kwargs={{"file_name": f"onnx/{{graph.name}}"}},
            local_files_only=True,
        )

    def execute(self, requests):
        inputs = [triton.get_input_tensor_by_name(request, "text").as_numpy()[:, 0] for request in requests]
        texts = [text.decode() for column in inputs for text in column]
        vectors = self.model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        ends = np.cumsum([len(column) for column in inputs])[:-1]
        return [
            triton.InferenceResponse([triton.Tensor("embedding", part)]) for part in np.split(vectors, ends)
        ]
"""

CONFIG = """
name: "minilm"
backend: "python"
max_batch_size: 64
input [{{ name: "text", data_type: TYPE_STRING, dims: [1] }}]
output [{{ name: "embedding", data_type: TYPE_FP32, dims: [{dimensions}] }}]
instance_group [{{ kind: KIND_CPU, count: 1 }}]
dynamic_batching {{ max_queue_delay_microseconds: 1000 }}
"""

DIMENSIONS = 384

folder, port = sys.argv[1], int(sys.argv[2])
installed = Path(pytriton.__file__).parent / "tritonserver"
version = f"{sys.version_info.major}.{sys.version_info.minor}"
backends, repository = Path("backends").absolute(), Path("repository").absolute()
shutil.copytree(installed / "backends" / "python", backends / "python")
stub = installed / "python_backend_stubs" / version / "triton_python_backend_stub"
(backends / "python" / stub.name).symlink_to(stub)  # a copy would not find the libraries beside the original
(repository / "minilm" / "1").mkdir(parents=True)
(repository / "minilm" / "1" / "model.py").write_text(MODEL.format(folder=folder))
(repository / "minilm" / "config.pbtxt").write_text(CONFIG.format(dimensions=DIMENSIONS))
path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the stub runs the first python3
program = str(installed / "bin" / "tritonserver")
arguments = [
    program, "--model-repository", str(repository), "--backend-directory", str(backends),
    "--http-address", "127.0.0.1", "--http-port", str(port), "--allow-grpc", "false", "--allow-metrics", "false",
]  # fmt: skip
os.execve(program, arguments, {**os.environ, "PATH": path})
