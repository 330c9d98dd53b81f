"""Servers that can be started: ours, and the peers in environments of their own."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bert_bench.serving import peers
from bert_bench.serving.wire_formats import KSERVE, OPENAI, TRITON, WireFormat

__all__ = ["PEERS", "ServerSpec", "our_server", "peer_program"]


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """A server of one model."""

    name: str
    label: str
    """A description for readers who do not know the name."""
    precision: str
    """Precision of its matmuls: `fp32` or `int8`."""
    command: tuple[str, ...]
    """Program of the environment, and its arguments, in which `{model}` and `{port}` are filled in."""
    model: str
    """Format that it loads: `bundle`, `checkpoint`, or a folder that `peers/export_onnx.py` writes."""
    environment: str | None = None
    """Its requirements are `requirements-<environment>.txt`; `None`: this process's environment."""
    wire_format: WireFormat = OPENAI
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that it needs."""
    in_model_folder: bool = False
    """Whether the model's folder is its working directory."""

    def argv(self, bin_folder: Path | None, model: Path, port: int) -> list[str]:
        """Return the command line.

        Args:
            bin_folder: folder of the environment's programs; `None`: this process's Python runs the command.
            model: folder of what it loads, see `ServerSpec.model`.
            port: port on the loopback interface.
        """
        program, *arguments = (item.format(model=model, port=port) for item in self.command)
        return [sys.executable if bin_folder is None else str(bin_folder / program), *arguments]


def peer_program(name: str) -> str:
    """Return the path of a program that runs in a peer's environment."""
    return str(Path(peers.__file__).parent / f"{name}.py")


def our_server(precision: str = "int8", *options: str) -> ServerSpec:
    """Return `bert-export serve` with a precision and further options."""
    arguments = ("serve", "minilm={model}", "--port", "{port}", "--precision", precision, *options)
    return ServerSpec(
        name=f"bert-export-{precision}", label=f"bert-export, {precision.upper()}", precision=precision,
        model="bundle", command=("python", "-P", "-m", "bert_export", *arguments),
    )  # fmt: skip


def _program(name: str, label: str, precision: str, environment: str, wire_format: WireFormat = OPENAI) -> ServerSpec:
    """Return a peer that is a program of `bert_bench.serving.peers`."""
    command = ("python", "-P", peer_program(name), "{model}", "{port}")
    short = name.replace("_sentence_transformers", "").replace("_", "-")
    return ServerSpec(
        name=f"{short}-{precision}", label=f"{label}, {precision.upper()}", precision=precision, command=command,
        model=precision, environment=environment, wire_format=wire_format,
    )  # fmt: skip


def _infinity(precision: str) -> ServerSpec:
    # It looks for the graph below the model's folder by the graph's whole path, which is found from inside only.
    command = (
        "infinity_emb", "v2", "--model-id", ".", "--served-model-name", "minilm", "--engine", "optimum",
        "--device", "cpu", "--pooling-method", "mean", "--url-prefix", "/v1", "--host", "127.0.0.1",
        "--port", "{port}", "--no-bettertransformer", "--log-level", "warning",
    )  # fmt: skip
    return ServerSpec(
        name=f"infinity-{precision}", label=f"infinity, {precision.upper()}", precision=precision,
        command=command, model=f"{precision}-flat", environment="server-infinity", in_model_folder=True,
        variables={"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"},
    )  # fmt: skip


def _vllm() -> ServerSpec:
    command = (
        "python", "-P", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}",
        "--served-model-name", "minilm", "--runner", "pooling", "--host", "127.0.0.1", "--port", "{port}",
        "--dtype", "float32", "--enforce-eager", "--disable-uvicorn-access-log",
    )  # fmt: skip
    return ServerSpec(
        name="vllm-cpu", label="vLLM, PyTorch, FP32", precision="fp32", command=command, model="checkpoint",
        environment="server-vllm",
        variables={"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
    )  # fmt: skip


PEERS: tuple[ServerSpec, ...] = (
    *(_infinity(precision) for precision in ("fp32", "int8")),
    *(
        _program(f"{name}_sentence_transformers", f"{title} + sentence-transformers", precision, f"server-{name}", wire)
        for name, title, wire in (
            ("fastapi", "FastAPI", OPENAI),
            ("litserve", "LitServe", OPENAI),
            ("mlserver", "MLServer", KSERVE),
            ("triton", "Triton", TRITON),
        )
        for precision in ("fp32", "int8")
    ),
    *(
        _program("fastapi_fastembed", "FastAPI + fastembed", precision, "server-fastembed")
        for precision in ("fp32", "int8")
    ),
    _vllm(),
)
"""The peers, in the order of tables."""
