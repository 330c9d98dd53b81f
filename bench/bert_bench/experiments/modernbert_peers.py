"""Other engines that run ModernBERT, opened on transformers' model with random weights.

PyTorch runs transformers' model. ONNX Runtime and OpenVINO run what torch's exporter captures of it. A file that is in
the work folder already is not written again.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert_bench.experiments.harness import open_in_onnxruntime
from bert_models import FAMILIES, EncoderConfig
from bert_runtime.machine import available_cores
from bert_runtime.tokenization import Batch

__all__ = ["Engine", "open_peers"]

Engine = Callable[[Batch], object]

_CALIBRATION_TOKENS = 64
_CALIBRATION_TEXTS = 8


def _transformers_model(config: EncoderConfig, attention: str) -> torch.nn.Module:
    from transformers import ModernBertConfig, ModernBertModel

    torch.manual_seed(0)
    values: dict[str, Any] = {**FAMILIES["modernbert"].dump_config(config), "attn_implementation": attention}
    model: torch.nn.Module = ModernBertModel(ModernBertConfig(**values))
    return model.eval()


def _open_torch(
    config: EncoderConfig, folder: Path, *, attention: str = "sdpa", dtype: torch.dtype = torch.float32
) -> Engine:
    torch.set_num_threads(available_cores())
    return partial(_run_torch, _transformers_model(config, attention).to(dtype))


def _run_torch(module: torch.nn.Module, batch: Batch) -> object:
    with torch.inference_mode():
        return module(torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask)).last_hidden_state


def _export(config: EncoderConfig, folder: Path) -> Path:
    """Export transformers' model with torch."""
    path = folder / "transformers.fp32.onnx"
    if not path.is_file():
        axes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("sequence", min=2, max=config.max_positions)}
        inputs = {name: torch.ones((2, 300), dtype=torch.int64) for name in ("input_ids", "attention_mask")}
        torch.onnx.export(
            _transformers_model(config, "sdpa"), (), path, kwargs=inputs, dynamo=True, opset_version=20, verbose=False,
            dynamic_shapes=dict.fromkeys(inputs, axes), input_names=list(inputs), output_names=["hidden"],
        )  # fmt: skip
    return path


def _open_onnx(config: EncoderConfig, folder: Path, *, dynamic: bool) -> Engine:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = _export(config, folder)
    if dynamic:
        exported, path = path, folder / "transformers.dynamic.onnx"
        if not path.is_file():
            quantize_dynamic(
                exported, path, per_channel=True, weight_type=QuantType.QInt8, use_external_data_format=True
            )
    return open_in_onnxruntime(path)


def _open_openvino(config: EncoderConfig, folder: Path, *, precision: str = "f32", int8: bool = False) -> Engine:
    import openvino

    path = _export(config, folder)
    if int8:
        path = _quantize_openvino(config, path, folder / "openvino.int8.xml")
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": available_cores(),
        "INFERENCE_PRECISION_HINT": precision,
    }
    compiled = openvino.compile_model(openvino.Core().read_model(path), "CPU", options)
    names = {name for value in compiled.inputs for name in value.names}
    return partial(_run_openvino, compiled.create_infer_request(), names)


def _quantize_openvino(config: EncoderConfig, exported: Path, path: Path) -> Path:
    """Quantize the exported graph with NNCF's scheme for transformers, on random tokens."""
    import nncf
    import openvino

    if not path.is_file():
        rng = np.random.default_rng(0)
        ids = [rng.integers(5, config.vocab_size, (1, _CALIBRATION_TOKENS)) for _ in range(_CALIBRATION_TEXTS)]
        data = nncf.Dataset([{"input_ids": tokens, "attention_mask": np.ones_like(tokens)} for tokens in ids])
        graph = openvino.Core().read_model(exported)
        quantized = nncf.quantize(graph, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=_CALIBRATION_TEXTS)
        openvino.save_model(quantized, path, compress_to_fp16=False)
    return path


def _run_openvino(request: Any, names: set[str], batch: Batch) -> object:
    feed = {name: array for name, array in batch._asdict().items() if name in names}
    return np.array(request.infer(feed, share_inputs=True)[0])


_PEERS: dict[str, Callable[[EncoderConfig, Path], Engine]] = {
    "transformers, eager attention, FP32": partial(_open_torch, attention="eager"),
    "transformers, SDPA, FP32": _open_torch,
    "transformers, SDPA, bfloat16": partial(_open_torch, dtype=torch.bfloat16),
    "ONNX Runtime, FP32": partial(_open_onnx, dynamic=False),
    "ONNX Runtime, dynamic INT8": partial(_open_onnx, dynamic=True),
    "OpenVINO, FP32": _open_openvino,
    "OpenVINO, bfloat16": partial(_open_openvino, precision="bf16"),
    "OpenVINO, INT8 (NNCF)": partial(_open_openvino, int8=True),
}


def open_peers(config: EncoderConfig, folder: Path, probe: Batch) -> tuple[dict[str, Engine], dict[str, str]]:
    """Open every peer and run it once.

    Args:
        config: ModernBERT's configuration.
        folder: where exported and quantized graphs are kept.
        probe: a batch that every peer has to run.

    Returns:
        The peers that run by name, and why the others do not.

    """
    engines, failed = {}, {}
    for name, open_peer in _PEERS.items():
        try:
            engine = open_peer(config, folder)
            engine(probe)
            engines[name] = engine
        except Exception as error:  # exporters and runtimes of peers share no error but this
            failed[name] = f"{type(error).__name__}: {error}"[:300]
    return engines, failed
