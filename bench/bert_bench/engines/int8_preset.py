"""The preset of Hugging Face's dynamic INT8 for this CPU, of optimum and of sentence-transformers."""

from bert_runtime.machine import has_instruction_set

__all__ = ["INT8_FILE", "INT8_PRESET"]

INT8_PRESET = "avx512_vnni" if has_instruction_set("vnni") else "avx2"
"""Preset; that for AVX2 has uint8 weights, whose dot products do not saturate."""

INT8_FILE = f"model_{'qint8' if INT8_PRESET == 'avx512_vnni' else 'quint8'}_{INT8_PRESET}.onnx"
"""Name that sentence-transformers gives the graph."""
