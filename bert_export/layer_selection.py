"""Select the hidden states that a feature-extraction model reads."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bert_export.errors import ExportError
from bert_runtime.tasks import FeatureExtraction, Task

__all__ = ["check_layers", "layers_option", "select_layers", "with_layers"]

_RANGE = re.compile(r"\s*(-?\d{1,9})?\s*(:)?\s*(-?\d{1,9})?\s*", re.ASCII)
"""A number, or two of them with a colon, either of which may be left out."""

_HOW = "write numbers and ranges from:to, both ends included, such as -1, -4:-1 or 3,6,9"


def with_layers(task: Task, layers: str | int | Sequence[int] | None, layer_combination: str | None) -> Task:
    """Return the task with other hidden states to read.

    Args:
        task: the task; all but feature-extraction take neither setting.
        layers: see `select_layers`; `None` leaves them as they are.
        layer_combination: one of `bert_runtime.tasks.feature_extraction.LAYER_COMBINATIONS`; `None` as above.

    Raises:
        ExportError: the task has no layers to select, or a setting is out of range.
    """
    if layers is None and layer_combination is None:
        return task
    if not isinstance(task, FeatureExtraction):
        given = "layers" if layers is not None else "layer_combination"
        raise ExportError(f"{given} is a setting of {FeatureExtraction.name}, found the task {task.name}")
    chosen = task.layers if layers is None else select_layers(layers, task.num_layers)
    try:
        return replace(task, layers=chosen, layer_combination=layer_combination or task.layer_combination)
    except ValueError as error:
        raise ExportError(str(error)) from None


def select_layers(layers: str | int | Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Return the indices of hidden states: 0 is the embeddings, n is what layer n computes.

    Args:
        layers: one index or several, negative ones from the end (-1 is the last layer); or as text, separated by
            commas, with ranges `from:to` that include both ends: `-4:-1`, or `-4:`, are the last four.
        num_layers: number of layers of the encoder.

    Raises:
        ExportError: an index is out of range, or the text is malformed.
    """
    if isinstance(layers, str):
        return tuple(index for part in layers.split(",") for index in _parse(part, layers, num_layers))
    chosen: Sequence[Any] = layers if isinstance(layers, Sequence) else [layers]
    return tuple(_index(layer, num_layers) for layer in chosen)


def check_layers(layers: str) -> None:
    """Raise `ExportError` for a text that names no layers, whatever the model, see `select_layers`."""
    for part in layers.split(","):
        _match(part, layers)


def _match(part: str, whole: str) -> re.Match[str]:
    """Return the match of a number or a range; raise `ExportError` for anything else."""
    match = _RANGE.fullmatch(part)
    if match is None or not part.strip() or (match[2] is None and match[3] is not None):
        raise ExportError(f"expected layers as numbers and ranges, found {whole!r:.80}; {_HOW}")
    return match


def _parse(part: str, whole: str, num_layers: int) -> list[int]:
    """Return the indices that a number or a range stands for."""
    match = _match(part, whole)
    if match[2] is None:
        return [_index(int(match[1]), num_layers)]
    first = 0 if match[1] is None else _index(int(match[1]), num_layers)
    last = num_layers if match[3] is None else _index(int(match[3]), num_layers)
    if first > last:
        raise ExportError(
            f"expected a range of layers from a lower to a higher one, found {part.strip()!r}, which is {first} to "
            f"{last} of {num_layers}; {_HOW}"
        )
    return list(range(first, last + 1))


def _index(layer: Any, num_layers: int) -> int:
    """Return an index from 0 for one that may count from the end."""
    if not isinstance(layer, int) or isinstance(layer, bool) or not -num_layers - 1 <= layer <= num_layers:
        raise ExportError(
            f"expected a layer of 0 (the embeddings) to {num_layers} (the last layer of this checkpoint), or -1 to "
            f"{-num_layers - 1} from the end, found {layer!r:.50}"
        )
    return layer if layer >= 0 else layer + num_layers + 1


def layers_option(layers: str | int | Sequence[int] | None) -> str | None:
    """Return layers as the command line takes them."""
    if layers is None or isinstance(layers, str):
        return layers
    return str(layers) if isinstance(layers, int) else ",".join(map(str, layers))
