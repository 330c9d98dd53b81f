"""Names for readers: of a model by its size, of an engine, and of the machine."""

import re
from collections.abc import Mapping
from typing import Any

from bert_bench.checkpoints import EncoderSize

__all__ = ["engine_product", "engine_title", "machine_title", "model_title"]

_MODELS = {
    (2, 128): "BERT-tiny",
    (4, 256): "BERT-mini",
    (4, 512): "BERT-small",
    (8, 512): "BERT-medium",
    (6, 384): "MiniLM-L6",
    (12, 384): "MiniLM-L12",
    (6, 768): "DistilBERT",
    (12, 768): "BERT-base",
    (24, 1024): "BERT-large",
}
"""The best-known model of each size, by layers and hidden size."""

_PRODUCTS = {
    "bert-export": "bert-export",
    "onnxruntime-plain": "ONNX Runtime",
    "onnxruntime-transformers": "onnxruntime.transformers",
    "openvino": "OpenVINO",
    "optimum": "optimum",
    "ctranslate2": "CTranslate2",
    "pytorch": "PyTorch",
    "pipeline-optimum": "pipeline, optimum",
    "pipeline-pytorch": "pipeline, PyTorch",
    "sentence-transformers": "sentence-transformers",
}
"""Names of products by the start of an engine's name; the longest start that fits counts."""

_GENERATIONS = {
    "6/85": "Skylake or Cascade Lake",
    "6/106": "Ice Lake",
    "6/143": "Sapphire Rapids",
    "6/173": "Granite Rapids",
    "6/207": "Emerald Rapids",
    "25/1": "Zen 3",
    "25/17": "Zen 4",
    "26/2": "Zen 5",
}
"""Generations of server processors by CPU family and model."""


def model_title(size: EncoderSize | None) -> str | None:
    """Return a model's size by name or in numbers; `None` if it is unknown."""
    if size is None:
        return None
    numbers = f"{size.layers} layers × {size.hidden_size}"
    name = _MODELS.get((size.layers, size.hidden_size))
    return numbers if name is None else f"{name} size ({numbers})"


def engine_product(name: str) -> str:
    """Return the product that an engine belongs to, such as `OpenVINO`; its name if that is unknown."""
    return _PRODUCTS.get(_product_start(name), name)


def engine_title(name: str, precision: str) -> str:
    """Return an engine's product and precision, such as `OpenVINO INT8`."""
    if name == precision:  # a variant of the bundle, as `bert-export bench` names it
        name = f"bert-export-{name}"
    start = _product_start(name)
    rest = name.removeprefix(start).replace("-", " ").replace(precision, "").strip()
    rest = re.sub(r"\bo(\d)\b", r"O\1", rest)  # levels of optimization
    words = [_PRODUCTS.get(start, ""), rest, precision.upper()]
    return " ".join(word for word in words if word)


def _product_start(name: str) -> str:
    """Return the longest key of `_PRODUCTS` that an engine's name starts with, `""` for none."""
    return max((start for start in _PRODUCTS if name.startswith(start)), key=len, default="")


def machine_title(machine: Mapping[str, Any]) -> str:
    """Return a machine's processor with its generation, if that is known, such as `Intel Xeon (Emerald Rapids)`."""
    cpu = re.sub(r"\((R|TM)\)|\bCPU\b|\bProcessor\b|@.*", "", str(machine["cpu"]))
    generation = _GENERATIONS.get(str(machine.get("cpu_model", "")).rpartition("/")[0])
    return " ".join(cpu.split()) + (f" ({generation})" if generation else "")
