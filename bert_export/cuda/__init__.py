"""The graphs of a bundle for CUDA: other operators than on the CPU, FP16 weights and activations, and their proof."""

from bert_export.cuda.build import build_cuda
from bert_export.cuda.fusion import fuse_for_cuda
from bert_export.cuda.half import to_half
from bert_export.cuda.packed import pack
from bert_export.cuda.ranges import unsafe_values
from bert_export.cuda.spelled_out import spell_out
from bert_export.cuda.unmasked import unmask

__all__ = ["build_cuda", "fuse_for_cuda", "pack", "spell_out", "to_half", "unmask", "unsafe_values"]
