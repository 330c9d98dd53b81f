"""Weights of a checkpoint: read them from disk, load them into a model, save them."""

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
"""File names of a checkpoint's weights in order of preference. An index lists the shards next to it."""

_OLD_NAMES = ((re.compile(r"\.gamma$"), ".weight"), (re.compile(r"\.beta$"), ".bias"))
"""Names of LayerNorm parameters in checkpoints converted from TensorFlow, and their current names."""


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold the weights of the checkpoint `folder`, in order.

    Raises:
        CheckpointError: there are none, or an index is malformed.
    """
    for name in WEIGHT_FILES:
        path = folder / name
        if path.is_file() and name.endswith(".index.json"):
            shards = sorted(set(read_json(path).get("weight_map", {}).values()))
            if not shards or any(Path(shard).name != shard for shard in shards):
                raise CheckpointError(f"{path}: expected 'weight_map' to name files next to it, found {shards}")
            return [folder / shard for shard in shards]
        if path.is_file():
            return [path]
    raise CheckpointError(f"{folder}: expected weights in one of {', '.join(WEIGHT_FILES)}, found none")


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of the checkpoint `folder` on the CPU, by key.

    Old LayerNorm names (`gamma`, `beta`) are replaced by `weight` and `bias`. Pickles are read with
    `weights_only=True`, so a checkpoint cannot run code.

    Raises:
        CheckpointError: there are no weights, or a file cannot be read.
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
    return {_current_name(key): tensor for key, tensor in tensors.items()}


def save_weights(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write `model.safetensors` into the existing `folder`."""
    path = folder / "model.safetensors"
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(0o666 & ~umask())  # safetensors creates it readable by its owner alone


def _current_name(key: str) -> str:
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
    """Copy `tensors` into the parameters of `model`, converted to their dtype.

    Args:
        model: the model to change.
        tensors: the checkpoint's tensors by key.
        keys: checkpoint key of every parameter of `model`, as in a checkpoint with a head.
        prefix: prefix of the encoder's keys; a checkpoint without a head omits it.
        ignored: regular expression of keys that are not needed.
        where: the checkpoint, for error messages.
        optional: parameters that may be missing; those that are keep their values.

    Raises:
        CheckpointError: keys are missing, unexpected or of another shape. The message lists all of them, and `model`
            is unchanged.
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
