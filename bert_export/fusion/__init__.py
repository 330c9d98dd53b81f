"""Graph fusion: our own small set of rewrites, aimed at the kernels that measured fast on the CPU."""

from bert_export.fusion.padding_branch import add_padding_branch
from bert_export.fusion.pipeline import expected_fusions, fuse
from bert_export.onnx_graph import FusionCounts

__all__ = ["FusionCounts", "add_padding_branch", "expected_fusions", "fuse"]
