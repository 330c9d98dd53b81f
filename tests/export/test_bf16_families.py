"""Conversion to bf16 of every kind of encoder: all of its functions, with outputs close to FP32's."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bert_export.bf16 import convert_to_bf16
from bert_export.fusion import fuse
from bert_export.outline_kernels import lower_for_cpu
from bert_export.parity import probe_batches, reference_outputs
from bert_models import EncoderConfig
from bert_runtime.cpu.session import Session

from ..queries_without_keys import skip_where_queries_without_keys_differ
from .toy_models import CONFIG, DISENTANGLED, MEAN, MODERN, RELATIVE, captured, toy_model

EDGES = {"EmbedNorm": 1, "MeanPoolNormalize": 1}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # Two norms per layer.
        (CONFIG, {"Bf16SelfAttention": 3, "Bf16Linear": 9, "Bf16LinearGelu": 3, "AddNorm": 6, **EDGES}),
        (RELATIVE, {"Bf16RelativeAttention": 3, "Bf16Linear": 9, "Bf16LinearGelu": 3, "AddNorm": 6, **EDGES}),
        (DISENTANGLED, {"Bf16DisentangledAttention": 3, "Bf16Linear": 9, "Bf16LinearGelu": 3, "AddNorm": 6, **EDGES}),
        # The norm behind the last layer is the only reader of its sum, as in a post-norm model.
        (MODERN, {"Bf16RotaryAttention": 1, "Bf16LocalAttention": 2, "Bf16Linear": 9, "Bf16LinearGatedGelu": 3,
                  "AddPreNorm": 5, "AddNorm": 1, **EDGES}),
    ],
    ids=["bert", "mpnet", "deberta", "modernbert"],
)  # fmt: skip
def test_bf16_functions_are_called_and_close_to_fp32(
    config: EncoderConfig, expected: dict[str, int], tmp_path: Path
) -> None:
    if config == MODERN:
        skip_where_queries_without_keys_differ()
    model, graph = toy_model(MEAN, config), captured(MEAN, config)
    graph = lower_for_cpu(graph, fuse(graph, config, MEAN)).graph
    assert convert_to_bf16(graph) == expected
    ir.save(graph, path := tmp_path / "bf16.onnx")
    runs = [Session(path, MEAN.output, 1, kernels=kernels).run for kernels in (True, False)]
    for batch in probe_batches(model, config.max_tokens).values():
        reference = reference_outputs(model, batch)
        for run in runs:
            difference = np.abs(run(batch) - reference).max()
            assert 0 < difference < 0.02
