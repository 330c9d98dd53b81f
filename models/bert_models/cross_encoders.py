"""Read and write rerankers in the layout of sentence-transformers' `CrossEncoder`.

Up to release 5.3, such a folder is a classifier of one label whose `config.json` names the activation:
`sentence_transformers.activation_fn`, or before release 4 `sbert_ce_default_activation_function`. Later ones have
`modules.json` and `config_sentence_transformers.json` (`model_type`, `activation_fn`, `prompts`), and their head is
either that classifier's or made of modules: pooling and dense layers, with layer normalizations between them.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from bert_models.errors import CheckpointError
from bert_models.files import read_optional_json, write_json
from bert_models.sentence_transformers import (
    SETTINGS_FILE,
    dense_config,
    is_sentence_transformers_folder,
    listed_modules,
    pooling_config,
    read_dense,
    read_pooling,
    write_modules,
)
from bert_runtime.tasks import Reranking, TextClassification

__all__ = [
    "cross_encoder_task",
    "is_cross_encoder",
    "num_labels",
    "read_reranking",
    "relevance_module_folders",
    "write_reranking",
]

_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "identity"}
"""torch's activation classes, and our names."""

_PATHS = {"sigmoid": "torch.nn.modules.activation.Sigmoid", "identity": "torch.nn.modules.linear.Identity"}

_TYPES = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "LayerNorm": "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm",
}
"""Classes of the modules in `modules.json`."""

_FEATURES = {
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
"""Output of the encoder that sentence-transformers passes to a head of modules."""


def is_cross_encoder(folder: Path, values: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint was saved by sentence-transformers' `CrossEncoder`.

    Args:
        folder: the checkpoint.
        values: the contents of its `config.json`.
    """
    if is_sentence_transformers_folder(folder):
        return _settings(folder).get("model_type") == "CrossEncoder"
    return "activation_fn" in _section(values) or values.get("sbert_ce_default_activation_function") is not None


def cross_encoder_task(folder: Path, values: Mapping[str, Any]) -> str:
    """Return the task of a `CrossEncoder`: one of several labels is a classifier of pairs, such as of entailment."""
    is_classifier = not _is_modular(folder) and num_labels(values) > 1
    return TextClassification.name if is_classifier else Reranking.name


def num_labels(values: Mapping[str, Any]) -> int:
    """Return the number of a classification head's labels that `config.json` names, 2 by default as in transformers."""
    names = values.get("id2label")
    found = len(names) if isinstance(names, dict) else values.get("num_labels", 2)
    return found if isinstance(found, int) else 2


def read_reranking(folder: Path, values: Mapping[str, Any], params: Mapping[str, Any]) -> Reranking:
    """Read the settings of a reranker.

    Args:
        folder: the checkpoint.
        values: the contents of its `config.json`.
        params: settings that sentence-transformers has no place for, see `task_settings.read_task_params`.

    Raises:
        CheckpointError: there is no head, or one of several labels, files are missing or malformed, or a setting is
            not supported.
    """
    names_labels = "id2label" in values or "num_labels" in values  # else the weights show whether there is a head
    if not _is_modular(folder) and names_labels and (count := num_labels(values)) != 1:
        raise CheckpointError(
            f"{folder / 'config.json'}: expected a head of one label for {Reranking.name}, found {count}; export it "
            f"with --task {TextClassification.name}, or train a new head: bert-export train --task {Reranking.name} "
            "--base"
        )
    if _is_modular(folder) and not is_cross_encoder(folder, values):
        raise CheckpointError(
            f"{folder / 'modules.json'}: expected a CrossEncoder, found another model of sentence-transformers "
            f"({', '.join(kind for kind, _ in listed_modules(folder)):.80}), which has no head for {Reranking.name}; "
            f"train one: bert-export train --task {Reranking.name} --base"
        )
    settings: dict[str, Any] = {"activation": _activation(folder, values)}
    if _is_modular(folder):
        settings |= _modular_head(folder)
    if prompt := _settings(folder).get("default_prompt_name"):
        raise CheckpointError(
            f"{folder / SETTINGS_FILE}: expected no default_prompt_name, found {prompt!r:.80}: prompts of rerankers "
            "are not supported; set it to null, and put the prompt in front of each query"
        )
    try:
        return Reranking(**{**settings, **{name: params[name] for name in ("long_documents",) if name in params}})
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}: {error}") from None


def relevance_module_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of modules with weights by their names in a checkpoint: `dense.0.linear`, `dense.0.norm`."""
    found: dict[str, Path] = {}
    number = -1
    for kind, path in listed_modules(folder) if _is_modular(folder) else ():
        number += kind == "Dense"
        if kind in ("Dense", "LayerNorm"):
            found[f"dense.{number}.{'linear' if kind == 'Dense' else 'norm'}"] = path
    return found


def _section(values: Mapping[str, Any]) -> Mapping[str, Any]:
    section = values.get("sentence_transformers")
    return section if isinstance(section, dict) else {}


def _settings(folder: Path) -> dict[str, Any]:
    return read_optional_json(folder / SETTINGS_FILE)


def _is_modular(folder: Path) -> bool:
    """Return whether the head is made of modules; else it is the family's classification head."""
    return is_sentence_transformers_folder(folder) and [kind for kind, _ in listed_modules(folder)] != ["Transformer"]


def _activation(folder: Path, values: Mapping[str, Any]) -> str:
    """Return our name of the activation; by default a sigmoid, as in sentence-transformers for one label."""
    where, found = folder / SETTINGS_FILE, _settings(folder).get("activation_fn")
    if found is None:
        where = folder / "config.json"
        found = _section(values).get("activation_fn") or values.get("sbert_ce_default_activation_function")
    if found is None:
        return "sigmoid"
    name = str(found).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise CheckpointError(
            f"{where}: expected an activation_fn of {', '.join(_PATHS.values())}, found {found!r:.80}"
        )
    return _ACTIVATIONS[name]


def _modular_head(folder: Path) -> dict[str, Any]:
    """Return pooling and dense layers of a folder with modules."""
    modules = listed_modules(folder)
    kinds = [kind for kind, _ in modules]
    layers: list[tuple[int, str, bool]] = []
    known = kinds[:2] == ["Transformer", "Pooling"] and kinds[-1] == "Dense"
    for kind, path in modules[2:]:
        if kind == "Dense":
            layers.append((*read_dense(path / "config.json"), False))
        elif kind == "LayerNorm" and layers and not layers[-1][2]:
            layers[-1] = (*layers[-1][:2], True)
        else:
            known = False
    if not known:
        raise CheckpointError(
            f"{folder / 'modules.json'}: expected the modules Transformer, Pooling and Dense, each Dense but the last "
            f"one optionally with a LayerNorm behind it, found {', '.join(kinds):.200}"
        )
    if layers[-1][0] != 1:
        where = modules[-1][1] / "config.json"
        raise CheckpointError(f"{where}: expected out_features of 1 for {Reranking.name}, found {layers[-1][0]}")
    sizes, activations, norms = zip(*layers, strict=True)
    pooling = read_pooling(modules[1][1] / "config.json")
    return {"pooling": pooling, "dense_sizes": sizes, "dense_activations": activations, "dense_norms": norms}


def write_reranking(folder: Path, task: Reranking, hidden_size: int) -> dict[str, Any]:
    """Write the files that `read_reranking` reads; the weights go into `relevance_module_folders(folder)`.

    Args:
        folder: an existing folder to write into.
        task: the task.
        hidden_size: width of the encoder's hidden states.

    Returns:
        Keys for `config.json`, where every release of sentence-transformers finds the activation of a classifier.
    """
    if task.pooling is None:
        return {"sentence_transformers": {"activation_fn": _PATHS[task.activation]}}
    modules = [("Transformer", {}), ("Pooling", pooling_config(task.pooling, hidden_size))]
    sizes = list(pairwise((hidden_size, *task.dense_sizes)))
    for pair, activation, norm in zip(sizes, task.dense_activations, task.dense_norms, strict=True):
        modules.append(("Dense", dense_config(*pair, activation)))
        modules += [("LayerNorm", {"dimension": pair[1]})] if norm else []
    modules[-1][1].update(module_input_name="sentence_embedding", module_output_name="scores")
    write_modules(folder, ((_TYPES[kind], settings) for kind, settings in modules))
    write_json(folder / "sentence_bert_config.json", {"transformer_task": "feature-extraction", **_FEATURES})
    values = {"model_type": "CrossEncoder", "activation_fn": _PATHS[task.activation]}
    write_json(folder / SETTINGS_FILE, {**values, "prompts": {}, "default_prompt_name": None})
    return {}
