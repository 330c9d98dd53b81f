"""Graph fusion: our own small set of rewrites, aimed at the kernels that measured fast on the CPU."""

from bert_export.fusion.padding_branch import branch_on_padding
from bert_export.fusion.pipeline import expected_fusions, fuse
from bert_export.onnx_graph import FusionCounts

__all__ = ["FusionCounts", "branch_on_padding", "expected_fusions", "fuse"]
