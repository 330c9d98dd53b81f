"""Read a checkpoint's weights by the names that its family's tables use."""

import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bert_models.errors import CheckpointError
from bert_models.families import Family
from bert_models.weights import read_weights

__all__ = ["read_canonical_weights"]

_LOG = logging.getLogger(__name__)

_WRAPPERS = ("module.", "_orig_mod.", "base_model.model.", "model.")
"""Prefixes that DataParallel, `torch.compile`, PEFT and modules of Lightning give all names of what they wrap."""


def read_canonical_weights(folder: Path, family: Family, config_json: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read all tensors of a checkpoint, by the names of `family`, without the prefixes of wrappers.

    Args:
        folder: the checkpoint.
        family: its family.
        config_json: the contents of its `config.json`.

    Raises:
        CheckpointError: see `read_weights`, or the layout of the family cannot be translated.
    """
    tensors = read_weights(folder)
    try:
        for prefix in _shared_prefixes(tensors):
            unwrapped = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
            found = family.canonical_weights(unwrapped, config_json)
            if _is_known(found, family):
                if prefix:
                    _LOG.warning("%s: the names of all weights begin with %s, which is left out", folder, prefix)
                return found
        return family.canonical_weights(tensors, config_json)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def _shared_prefixes(keys: Collection[str]) -> Iterator[str]:
    """Yield what wrappers may have put before all keys: nothing, the outermost prefix, the outer two, and so on."""
    prefix: str | None = ""
    while prefix is not None:
        yield prefix
        longer = [prefix + wrapper for wrapper in _WRAPPERS]
        prefix = next((item for item in longer if keys and all(key.startswith(item) for key in keys)), None)


def _is_known(tensors: Mapping[str, Tensor], family: Family) -> bool:
    """Return whether the embeddings of tokens, which every family has, are among the tensors."""
    key = f"{family.encoder_weights['embeddings.token']}.weight"
    return key in tensors or family.prefix + key in tensors
