"""A checkpoint's tensors: reading them from disk, and fitting them into a model."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bert_models.errors import CheckpointError
from bert_models.files import read_json
from bert_models.model import TaskModel
from bert_runtime.bundle.atomic_folders import umask

__all__ = ["WEIGHT_FILES", "load_weights", "read_weights", "save_weights", "weight_files"]

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""File names a checkpoint's weights may have, the preferred first. An index names the shards beside it."""

_OLD_NAMES = ((re.compile(r"\.gamma$"), ".weight"), (re.compile(r"\.beta$"), ".bias"))
"""LayerNorm parameters in checkpoints converted from TensorFlow."""


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights; raises `CheckpointError` where there are none."""
    for name in WEIGHT_FILES:
        path = folder / name
        if path.is_file() and name.endswith(".index.json"):
            shards = sorted(set(read_json(path).get("weight_map", {}).values()))
            if not shards or any(Path(shard).name != shard for shard in shards):
                raise CheckpointError(f"{path}: expected 'weight_map' to name files beside it, found {shards}")
            return [folder / shard for shard in shards]
        if path.is_file():
            return [path]
    raise CheckpointError(f"{folder}: expected weights in one of {', '.join(WEIGHT_FILES)}, found none")


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint by key, old LayerNorm names replaced by today's.

    Pickles are read with `weights_only=True`, so that a checkpoint cannot run code.
    """
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            if path.suffix == ".safetensors":
                tensors |= load_file(path)
            else:
                tensors |= torch.load(path, map_location="cpu", weights_only=True)
        except (SafetensorError, UnpicklingError, OSError, RuntimeError, EOFError, TypeError) as error:
            raise CheckpointError(f"{path}: the weights cannot be read: {error}") from None
    return {_today(key): tensor for key, tensor in tensors.items()}


def save_weights(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Writes `model.safetensors` into `folder`."""
    path = folder / "model.safetensors"
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(0o666 & ~umask())  # safetensors makes it private


def _today(key: str) -> str:
    for old, new in _OLD_NAMES:
        key = old.sub(new, key)
    return key


def load_weights(
    model: TaskModel,
    tensors: Mapping[str, Tensor],
    keys: Mapping[str, str],
    *,
    prefix: str,
    ignored: str,
    where: Path,
    optional: Iterable[str] = (),
) -> None:
    """Copies `tensors` into `model` as float32; parameters that may be missing, and are, stay newly initialised.

    Args:
        keys: each of the model's parameters to its key in a checkpoint with a head.
        prefix: what encoder keys begin with there; a checkpoint without a head leaves it out.
        ignored: regular expression for keys that are not needed.
        optional: parameters that may be missing.

    Raises `CheckpointError` listing every missing, unexpected and mis-shaped key at once, and then changes nothing.
    """
    parameters = dict(model.named_parameters())
    expected = set(keys.values())
    found = {key if key in expected or prefix + key not in expected else prefix + key: key for key in tensors}
    new = [name for name in optional if keys[name] not in found]
    missing = [keys[name] for name in parameters if keys[name] not in found and name not in new]
    unexpected = [key for name, key in found.items() if name not in expected and not re.fullmatch(ignored, key)]
    misshaped = [
        f"{found[keys[name]]} (expected {list(parameter.shape)}, found {list(tensors[found[keys[name]]].shape)})"
        for name, parameter in parameters.items()
        if keys[name] in found and parameter.shape != tensors[found[keys[name]]].shape
    ]
    problems = [
        f"{len(listed)} {kind}: {', '.join(listed)}"
        for kind, listed in (("missing", missing), ("unexpected", unexpected), ("mis-shaped", misshaped))
        if listed
    ]
    if problems:
        raise CheckpointError(f"{where}: the weights do not fit the configuration; " + "; ".join(problems))
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name not in new:
                parameter.copy_(tensors[found[keys[name]]])
