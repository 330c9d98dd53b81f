"""A Triton Inference Server that serves bundles: model repositories, and the Python backend that they run.

`bert_serve.triton.backend` is not imported here: it is copied into a model repository, where Triton imports it.
"""

from bert_serve.triton.model_config import ModelConfig
from bert_serve.triton.repository import backend_path, write_model

__all__ = ["ModelConfig", "backend_path", "write_model"]
