"""Check what a checkpoint's folder is, before anything is read from it."""

import os
from pathlib import Path

from bert_models.errors import CheckpointError
from bert_models.files import read_json

__all__ = ["ADAPTER_CONFIG", "check_folder", "check_no_adapter"]

ADAPTER_CONFIG = "adapter_config.json"
"""The file that PEFT writes next to the weights of an adapter."""


def check_folder(path: Path) -> None:
    """Raise `CheckpointError` unless `path` is a folder, and one without an adapter."""
    if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for names that are too long or have a NUL
        found = "a file" if os.path.lexists(path) else "nothing"
        raise CheckpointError(f"{path!s:.200}: expected a checkpoint (a directory with config.json), found {found}")
    check_no_adapter(path)


def check_no_adapter(folder: Path) -> None:
    """Raise `CheckpointError` for an adapter of PEFT, such as LoRA, whose weights are to be merged into its base first.

    That also holds next to full weights: those of the base alone, to which transformers adds the adapter.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        return
    values = read_json(folder / ADAPTER_CONFIG)
    kind, base = str(values.get("peft_type") or "PEFT"), values.get("base_model_name_or_path")
    kind = {"LORA": "LoRA"}.get(kind, kind)
    raise CheckpointError(
        f"{folder}: expected whole weights, found a {kind:.40} adapter of {base or 'an unnamed base'!s:.200} "
        f"({ADAPTER_CONFIG}); merge it first, with model.merge_and_unload().save_pretrained(...) of peft into another "
        "folder, and save the tokenizer there, too"
    )
