"""Requests for embeddings as servers expect them, and the embeddings in their answers."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_runtime.numerics import FloatArray

__all__ = ["KSERVE", "OPENAI", "TRITON", "Request", "WireFormat"]

_MODEL = "minilm"
"""Model name in requests; servers of a single model accept it or are told to use it."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """An HTTP request. Field names are JSON keys of a locust plan."""

    name: str
    """Label in the results."""
    method: str = "POST"
    path: str
    body: str = ""
    texts: int = 0
    """Number of texts in the body."""


class WireFormat(ABC):
    """A way to ask for embeddings over HTTP."""

    @abstractmethod
    def request(self, texts: Sequence[str], name: str = "embeddings") -> Request:
        """Return the request that embeds the texts."""

    @abstractmethod
    def embeddings(self, answer: bytes) -> FloatArray:
        """Return the embeddings in an answer, float32 [N, H]."""


class _OpenAI(WireFormat):
    """`POST /v1/embeddings`, with embeddings as lists of numbers."""

    def request(self, texts: Sequence[str], name: str = "embeddings") -> Request:
        body = json.dumps({"model": _MODEL, "input": list(texts), "encoding_format": "float"})
        return Request(name=name, path="/v1/embeddings", body=body, texts=len(texts))

    def embeddings(self, answer: bytes) -> FloatArray:
        data: list[dict[str, Any]] = json.loads(answer)["data"]
        return np.array([item["embedding"] for item in data], dtype=np.float32)


class _KServe(WireFormat):
    """The Open Inference Protocol, version 2: `POST /v2/models/NAME/infer`.

    Args:
        column: whether texts are a column, [N, 1], as Triton has it, or a vector, [N].
    """

    def __init__(self, *, column: bool) -> None:
        self._column = column

    def request(self, texts: Sequence[str], name: str = "embeddings") -> Request:
        shape = [len(texts), 1] if self._column else [len(texts)]
        tensor = {"name": "text", "shape": shape, "datatype": "BYTES", "data": list(texts)}
        body: dict[str, Any] = {"inputs": [tensor]}
        if self._column:  # Triton answers in binary unless asked otherwise
            body["outputs"] = [{"name": "embedding", "parameters": {"binary_data": False}}]
        path = f"/v2/models/{_MODEL}/infer"
        return Request(name=name, path=path, body=json.dumps(body), texts=len(texts))

    def embeddings(self, answer: bytes) -> FloatArray:
        (tensor,) = json.loads(answer)["outputs"]
        return np.array(tensor["data"], dtype=np.float32).reshape(tensor["shape"])


OPENAI: WireFormat = _OpenAI()
KSERVE: WireFormat = _KServe(column=False)
TRITON: WireFormat = _KServe(column=True)
