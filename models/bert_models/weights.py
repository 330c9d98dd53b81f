"""Weights of a checkpoint: read them from disk, load them into a model, save them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bert_models.errors import CheckpointError
from bert_models.files import is_file_name, read_json
from bert_models.model import TaskModel
from bert_runtime.bundle.atomic_folders import umask

__all__ = [
    "WEIGHT_FILES",
    "check_weights",
    "join_parts",
    "load_weights",
    "read_weights",
    "save_weights",
    "split_parts",
    "weight_files",
]

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""File names of a checkpoint's weights in order of preference. An index lists the shards next to it."""

_OLD_NAMES = ((re.compile(r"\.gamma$"), ".weight"), (re.compile(r"\.beta$"), ".bias"))
"""Names of LayerNorm parameters in checkpoints converted from TensorFlow, and their current names."""


_PART = re.compile(r"(.*)\[\d+/(\d+)\]")
"""A key of one part of a merged tensor: the tensor's key, and the number of its parts."""

_MAX_LISTED = 100
"""Keys of each kind that an error lists: all of a few layers."""


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold the weights of the checkpoint `folder`, in order.

    Raises:
        CheckpointError: there are none, or an index is malformed or names files that are missing.
    """
    for name in WEIGHT_FILES:
        path = folder / name
        if path.is_file():
            return _shards(path) if name.endswith(".index.json") else [path]
    raise CheckpointError(f"{folder}: expected weights in one of {', '.join(WEIGHT_FILES)}, found none")


def _shards(index: Path) -> list[Path]:
    """Return the files that an index lists."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: expected 'weight_map' to map keys to files, found {weight_map!r:.80}")
    for key, shard in weight_map.items():
        if not is_file_name(shard):
            raise CheckpointError(
                f"{index}: expected 'weight_map' to name files next to it, found {shard!r:.80} for the key {key!r:.80}"
            )
    shards = [index.with_name(name) for name in sorted(set(weight_map.values()))]
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise CheckpointError(f"{index}: expected the files that 'weight_map' names, found no {', '.join(missing)}")
    return shards


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
                found = load_file(path)
            else:
                found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # damaged pickles raise errors of almost every type
            reason = str(error) or type(error).__name__
            raise CheckpointError(f"{path}: the weights cannot be read: {reason:.500}") from None
        _check_tensors(found, path)
        tensors |= found
    return {_current_name(key): tensor for key, tensor in tensors.items()}


def _check_tensors(found: object, path: Path) -> None:
    """Raise `CheckpointError` unless `found`, from a pickle, maps keys to tensors that have all of their values."""
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{path}: expected tensors by key, found {type(found).__name__}")
    for key, tensor in found.items():
        if not isinstance(key, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(
                f"{path}: expected tensors, as in model.state_dict(), found {type(tensor).__name__} at {key!r:.80}"
            )
        is_stored = tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not is_stored or tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
            raise CheckpointError(f"{path}: expected {key!r:.80} to be a dense tensor with all of its values")


def save_weights(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write `model.safetensors` into the existing `folder`."""
    path = folder / "model.safetensors"
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(0o666 & ~umask())  # safetensors creates it readable by its owner alone


def _current_name(key: str) -> str:
    for old, new in _OLD_NAMES:
        key = old.sub(new, key)
    return key


def split_parts(tensors: Mapping[str, Tensor], keys: Iterable[str], prefix: str) -> dict[str, Tensor]:
    """Replace merged tensors, such as those of queries, keys and values, by their parts.

    Args:
        tensors: the checkpoint's tensors by key.
        keys: keys that a model needs; those of parts end in `[i/n]`, see `bert_models.families.base.WeightMap`.
        prefix: prefix of the encoder's keys; a checkpoint without a head omits it.

    Returns:
        The tensors; those that do not have n equal parts stay whole.
    """
    counts = {match[1]: int(match[2]) for key in keys if (match := _PART.fullmatch(key))}
    found: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        count = counts.get(key, counts.get(prefix + key))
        if count is None or tensor.ndim == 0 or len(tensor) % count:
            found[key] = tensor
        else:
            found |= {f"{key}[{index}/{count}]": part for index, part in enumerate(tensor.chunk(count))}
    return found


def join_parts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Concatenate the parts of merged tensors; the inverse of `split_parts`."""
    joined: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        if (match := _PART.fullmatch(key)) is None:
            joined[key] = tensor
        elif match[1] not in joined:
            parts = [tensors[f"{match[1]}[{index}/{match[2]}]"] for index in range(int(match[2]))]
            joined[match[1]] = torch.cat(parts)
    return joined


def check_weights(
    model: TaskModel,
    tensors: Mapping[str, Tensor],
    keys: Mapping[str, str],
    *,
    prefix: str,
    ignored: str,
    where: Path,
    optional: Iterable[str] = (),
) -> dict[str, Tensor]:
    """Match `tensors` with the parameters of `model`.

    Args:
        model: the model; only the shapes of its parameters are read, so it may be on the meta device.
        tensors: the checkpoint's tensors by key.
        keys: checkpoint key of every parameter of `model`, as in a checkpoint with a head.
        prefix: prefix of the encoder's keys; a checkpoint without a head omits it.
        ignored: regular expression of keys that are not needed.
        where: the checkpoint, for error messages.
        optional: parameters that may be missing.

    Returns:
        The tensors by parameter name, without the optional ones that are missing.

    Raises:
        CheckpointError: keys are missing, unexpected, of another shape or not floating point, or values are not
            finite. The message lists up to 100 of each.
    """
    parameters = dict(model.named_parameters())
    expected = set(keys.values())
    found = {key if key in expected or prefix + key not in expected else prefix + key: key for key in tensors}
    new = [name for name in optional if keys[name] not in found]
    missing = [keys[name] for name in parameters if keys[name] not in found and name not in new]
    unexpected = [key for name, key in found.items() if name not in expected and not re.fullmatch(ignored, key)]
    matched = {name: found[keys[name]] for name in parameters if keys[name] in found}
    misshaped = [
        f"{key} (expected {list(parameters[name].shape)}, found {list(tensors[key].shape)})"
        for name, key in matched.items()
        if parameters[name].shape != tensors[key].shape
    ]
    no_floats = [f"{key} ({tensors[key].dtype})" for key in matched.values() if not tensors[key].is_floating_point()]
    problems = [
        f"{len(listed)} {kind}: {_listed(listed)}"
        for kind, listed in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("mis-shaped", misshaped),
            ("not floating point", no_floats),
        )
        if listed
    ]
    if problems:
        raise CheckpointError(f"{where}: the weights do not fit the configuration; " + "; ".join(problems))
    if damaged := [key for key in matched.values() if not tensors[key].isfinite().all()]:
        raise CheckpointError(
            f"{where}: expected finite weights, found NaN or infinity in {_listed(damaged)}; the training run has "
            "diverged, or the file is damaged: take an earlier checkpoint, or train again with a lower learning rate"
        )
    return {name: tensors[key] for name, key in matched.items()}


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(keys[:_MAX_LISTED]) + (", …" if len(keys) > _MAX_LISTED else "")


def load_weights(model: TaskModel, matched: Mapping[str, Tensor]) -> None:
    """Copy tensors into the parameters of `model`, converted to their dtype.

    Args:
        model: the model to change; parameters that have no tensor keep their values.
        matched: tensors by parameter name, see `check_weights`.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in matched:
                parameter.copy_(matched[name])
