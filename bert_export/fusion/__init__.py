"""Fuse a captured graph: a small set of rewrites for the operators that measured fastest on the CPU."""

from bert_export.fusion.padding_branch import add_padding_branch
from bert_export.fusion.pipeline import expected_fusions, fuse
from bert_export.onnx_graph import FusionCounts

__all__ = ["FusionCounts", "add_padding_branch", "expected_fusions", "fuse"]
