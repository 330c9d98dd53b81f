"""What the projections of a graph read, measured on texts."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import linears, scope
from bert_runtime.cpu.session import open_onnxruntime_session
from bert_runtime.machine import available_cores
from bert_runtime.numerics import Float32Array
from bert_runtime.tokenization import Batch

__all__ = ["Activations", "measure_activations"]

_MAX_SAMPLES = 4096
"""Tokens whose activations are kept, of all that are measured."""

_MAX_BYTES = 2**30
"""Memory for the kept activations of all projections together; large models keep fewer tokens."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """What one projection reads: the range of each channel over all tokens, and some of the tokens."""

    low: Float32Array
    """Least value of each channel [in]."""
    high: Float32Array
    samples: Float32Array
    """Rows of some of the tokens [n, in], the same tokens for every projection."""

    def divided(self, factors: Float32Array) -> "Activations":
        """The activations with each channel divided by its factor [in]."""
        return Activations(low=self.low / factors, high=self.high / factors, samples=self.samples / factors)


def measure_activations(model: ir.Model, batches: Sequence[Batch], headroom: float = 1.0) -> dict[str, Activations]:
    """Runs a fused FP32 graph and returns, by the value's name, what the encoder's projections read. Skips padding.

    Ranges are widened by the factor `headroom`. The same tokens are kept in every run.
    """
    graph = model.clone()
    values = {
        linear.input.name: linear.input for linear in linears(graph) if scope(linear.matmul).startswith("encoder.")
    }
    graph.graph.outputs.extend(value for value in values.values() if not value.is_graph_output())
    names = [str(name) for name in values]
    limit = _MAX_BYTES // (4 * sum(_width(value) for value in values.values()))
    masks = [batch.attention_mask.astype(bool) for batch in batches]
    kept = _kept_tokens(sum(int(mask.sum()) for mask in masks), max(1, min(_MAX_SAMPLES, limit)))
    measured = {name: _Measured() for name in names}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        ir.save(graph, path, external_data="model.onnx.data")  # one file could not hold the largest models
        session = open_onnxruntime_session(path, available_cores())
        wanted = {each.name for each in session.get_inputs()}
        for batch, mask in zip(batches, masks, strict=True):
            chosen, kept = np.split(kept, [int(mask.sum())])
            feed = {name: array for name, array in batch._asdict().items() if name in wanted}
            for name, array in zip(names, session.run(names, feed), strict=True):
                if array.shape[1] == mask.shape[1]:
                    measured[name].add(array[mask], chosen)
                else:  # the first row alone
                    measured[name].add(array[:, 0], np.ones(len(array), dtype=bool))
    return {name: each.activations(headroom) for name, each in measured.items()}


def _width(value: ir.Value) -> int:
    """Size of the last axis."""
    width = value.shape[-1] if value.shape is not None else None
    assert isinstance(width, int)
    return width


def _kept_tokens(count: int, limit: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of `count` tokens to keep: bool [count], true at `limit` of them at random."""
    kept = np.zeros(count, dtype=bool)
    kept[np.random.default_rng(0).permutation(count)[:limit]] = True
    return kept


class _Measured:
    """Collects batches of one projection's input."""

    def __init__(self) -> None:
        self._low: list[Float32Array] = []
        self._high: list[Float32Array] = []
        self._samples: list[Float32Array] = []

    def add(self, rows: Float32Array, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        self._low.append(rows.min(axis=0))
        self._high.append(rows.max(axis=0))
        self._samples.append(rows[chosen])

    def activations(self, headroom: float) -> Activations:
        low, high = (headroom * each for each in (np.min(self._low, axis=0), np.max(self._high, axis=0)))
        return Activations(low=low, high=high, samples=np.concatenate(self._samples))
