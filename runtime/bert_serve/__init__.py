"""Serve exported bundles: HTTP in the formats that clients speak, bulk work, and adapters for Ray, Spark and Triton.

Torch-free: it uses `bert_runtime` alone. Install it with the extra `serve`; bulk work needs `batch`, Ray `ray`.
"""

from bert_serve.tables import batch_function

__all__ = ["batch_function"]
