"""The interface between a model and the session that computes its outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["FunctionRunner", "Runner"]


class Runner(Protocol):
    """Anything that computes the raw outputs of a batch of token ids.

    `Model` takes any runner: a session of ONNX Runtime on the CPU, on CUDA or on TensorRT, several of them behind a
    router, or another engine. A runner that serves several threads must be safe to call from them.
    """

    @property
    def threads(self) -> int:
        """Threads per operator on the CPU; 1 on a GPU."""

    @property
    def device_name(self) -> str:
        """The device as `repr(model)` shows it, such as `2 threads` or `cuda:0`."""

    def run(self, batch: Batch) -> FloatArray:
        """Return the raw outputs of a batch, float32 [B, …]."""


@dataclass(frozen=True)
class FunctionRunner:
    """A runner made of a function, for engines other than ONNX Runtime."""

    run: Callable[[Batch], FloatArray]
    threads: int = 1
    device_name: str = "custom engine"
