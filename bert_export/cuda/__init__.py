"""Build a bundle's graphs for CUDA: ONNX Runtime's CUDA operators, FP16, and what a CPU can verify of them."""

from bert_export.cuda.build import build_cuda
from bert_export.cuda.decompose_packing import decompose_packed_ops
from bert_export.cuda.drop_mask import drop_attention_mask
from bert_export.cuda.fp16 import convert_to_fp16
from bert_export.cuda.fp16_overflow import find_fp16_overflows
from bert_export.cuda.fusion import fuse_for_cuda
from bert_export.cuda.packed import pack

__all__ = [
    "build_cuda",
    "convert_to_fp16",
    "decompose_packed_ops",
    "drop_attention_mask",
    "find_fp16_overflows",
    "fuse_for_cuda",
    "pack",
]
