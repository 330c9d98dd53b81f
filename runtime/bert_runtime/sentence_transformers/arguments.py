"""Arguments of sentence-transformers' methods: those that bundles do not support, devices, and formats of results."""

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from bert_runtime.errors import InputError, MissingExtraError
from bert_runtime.loading import load
from bert_runtime.model import Model

__all__ = [
    "as_array",
    "as_list",
    "check_device",
    "check_unused",
    "convert",
    "device_of",
    "open_model",
    "resolve_prompt",
]


def check_unused(where: str, given: Mapping[str, Any], allowed: Mapping[str, Any]) -> None:
    """Raise `InputError` for arguments that bundles do not support, unless they have the values that change nothing.

    Args:
        where: the method, for the message.
        given: arguments by name.
        allowed: for each supported-by-default argument the value that changes nothing.
    """
    for name, value in given.items():
        if name not in allowed:
            raise InputError(f"{where}: the argument {name} is not supported by bundles")
        if value not in (None, allowed[name]):
            raise InputError(
                f"{where}: {name}={value!r:.60} is not supported by bundles; expected {allowed[name]!r} or nothing"
            )


def open_model(bundle: str | Path | Model, device: str | None, **options: Any) -> Model:
    """Return a loaded bundle.

    Args:
        bundle: a bundle's folder, or a model that is loaded already.
        device: sentence-transformers' name of a device, such as `cpu` or `cuda:0`; of a loaded model its own or `None`.
        options: of `bert_runtime.load`; of a loaded model `None` or `auto`.

    Raises:
        InputError: a loaded model is to run elsewhere or otherwise.
    """
    if isinstance(bundle, Model):
        check_device("the constructor", device, bundle)
        if given := {name: value for name, value in options.items() if value not in (None, "auto")}:
            raise InputError(
                f"expected a bundle's folder with {', '.join(given)}, found a loaded model, which keeps what it was "
                "loaded with; give its folder, or load it with these options"
            )
        return bundle
    return load(bundle, device="auto" if device is None else str(device), **options)


def device_of(model: Model) -> str:
    """Return where a model runs by PyTorch's name, such as `cpu` or `cuda:0`."""
    name = model.session.device_name
    return "cpu" if name.endswith(" threads") else name.replace("tensorrt", "cuda")


def check_device(where: str, device: Any, model: Model) -> None:
    """Raise `InputError` for another device than the model's; `cuda` is any GPU.

    Args:
        where: the method, for the message.
        device: what was given: a name or a `torch.device`.
        model: the loaded bundle.
    """
    found = device_of(model)
    if device is not None and str(device) not in (found, found.partition(":")[0]):
        raise InputError(
            f"{where}: device={str(device)!r:.60} is not supported: this bundle was loaded on {found}; load it on "
            "another device"
        )


def resolve_prompt(
    prompts: Mapping[str, str], default_name: str | None, prompt: str | None, prompt_name: str | None
) -> str:
    """Return the text that is put in front of inputs, chosen as sentence-transformers does: `prompt` comes first."""
    if prompt is not None:
        return prompt
    name = default_name if prompt_name is None else prompt_name
    if name is None:
        return ""
    if name not in prompts:
        raise InputError(f"expected a prompt_name of {', '.join(prompts)}, found {name!r:.50}")
    return prompts[name]


def as_list(inputs: Any) -> list[Any]:
    """Return several inputs as a list: a list, a Series, an array, a column, or any other iterable.

    Raises:
        InputError: they are nothing of this kind, or have no order.
    """
    if isinstance(inputs, np.ndarray):
        return np.atleast_1d(inputs).tolist()
    if not isinstance(inputs, Iterable) or isinstance(inputs, Mapping | Set):
        raise InputError(f"expected a text or several, found {type(inputs).__name__}: {inputs!r:.60}")
    return list(inputs)


def convert(values: Any, *, to_numpy: bool, to_tensor: bool) -> Any:
    """Return an array as a tensor of PyTorch where asked for, or as a list of tensors, or as it is.

    Raises:
        MissingExtraError: PyTorch is not installed.
    """
    if not to_tensor and to_numpy:
        return values
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "export", "a tensor as result (convert_to_tensor, convert_to_numpy)") from None
    tensor = torch.as_tensor(values)
    return tensor if to_tensor else list(tensor)


def as_array(values: Any) -> np.ndarray[Any, Any]:
    """Return vectors as an array [N, H]: from an array, a tensor, a list of either, or a single vector."""
    if isinstance(values, Sequence):
        values = np.stack([np.asarray(value) for value in values])
    array = np.asarray(values)
    return array[None] if array.ndim == 1 else array
