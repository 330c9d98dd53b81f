"""The graphs of a bundle for CUDA: other operators than on the CPU, FP16 weights and activations, and their proof."""

from bert_export.cuda.build import build_cuda
from bert_export.cuda.decompose_packing import spell_out
from bert_export.cuda.drop_mask import unmask
from bert_export.cuda.fp16 import to_half
from bert_export.cuda.fp16_overflow import unsafe_values
from bert_export.cuda.fusion import fuse_for_cuda
from bert_export.cuda.packed import pack

__all__ = ["build_cuda", "fuse_for_cuda", "pack", "spell_out", "to_half", "unmask", "unsafe_values"]
