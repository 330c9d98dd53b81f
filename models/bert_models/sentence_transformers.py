"""Read and write the settings of sentence-transformers folders: pooling, dense layers, normalisation and length.

Such a folder is a checkpoint with `modules.json` (the pipeline), `1_Pooling/config.json`, optional dense layers
(`2_Dense/`, …), `sentence_bert_config.json` (`max_seq_length`) and `config_sentence_transformers.json` (prompts).
A `Normalize` module has no settings, so its folder may be absent.

`bert_models.sparse_encoders` knows the settings of its `SparseEncoder`.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from bert_models.config import MAX_SIZE
from bert_models.errors import CheckpointError
from bert_models.files import is_file_name, read_json, read_optional_json, write_json
from bert_runtime.tasks import SentenceEmbedding

__all__ = [
    "SETTINGS_FILE",
    "dense_config",
    "is_sentence_transformers_folder",
    "listed_modules",
    "module_folders",
    "module_types",
    "pooling_config",
    "read_dense",
    "read_max_tokens",
    "read_pooling",
    "read_sentence_embedding",
    "write_modules",
    "write_sentence_embedding",
]

SETTINGS_FILE = "config_sentence_transformers.json"
"""File of the settings of a whole pipeline, such as its prompts."""

_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_attention_tokens": "attention",
}
"""Boolean keys of a pooling's `config.json`, and our names. sentence-transformers does not know the last one."""

_POOLING_MODES = {
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
}
"""Values of `pooling_mode`, which later releases of sentence-transformers write instead, and our names."""

SETTINGS_NAMES = tuple(
    f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta")
)
"""Names of the transformer's settings: sentence-transformers reads the first one that is there."""

_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}
"""torch's activation classes, as a dense module names them, and our names."""


def is_sentence_transformers_folder(folder: Path) -> bool:
    """Return whether `folder` describes a sentence-transformers pipeline."""
    return (folder / "modules.json").is_file()


def read_max_tokens(folder: Path) -> int | None:
    """Return `max_seq_length` in tokens, or `None` if it is not set; raise `CheckpointError` if it is invalid."""
    path = next((path for name in SETTINGS_NAMES if (path := folder / name).is_file()), folder / SETTINGS_NAMES[0])
    settings = read_optional_json(path)
    if settings.get("do_lower_case"):
        raise CheckpointError(f"{path}: do_lower_case is not supported; set it in tokenizer_config.json instead")
    value = settings.get("max_seq_length")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise CheckpointError(f"{path}: expected a positive max_seq_length, found {value!r:.80}")
    return value


def read_sentence_embedding(folder: Path, hidden_size: int) -> SentenceEmbedding:
    """Read pooling, dense layers and normalisation of a sentence-transformers folder.

    Args:
        folder: holds `modules.json`.
        hidden_size: width of the encoder's hidden states.

    Raises:
        CheckpointError: files are missing or malformed, or a module or setting is not supported.
    """
    path = folder / "modules.json"
    kinds = module_types(folder)
    rest = [kind for kind in kinds[2:] if kind != "Dense"]
    if kinds[:2] != ["Transformer", "Pooling"] or rest not in ([], ["Normalize"]) or "Normalize" in kinds[:-1]:
        raise CheckpointError(
            f"{path}: expected the modules Transformer, Pooling, any number of Dense, and optionally Normalize, "
            f"found {', '.join(kinds):.200}"
        )
    dense = [read_dense(path / "config.json") for path in _folders(folder, "Dense")]
    pooling = _folders(folder, "Pooling")[0] / "config.json"
    return _with_prompts(
        folder / SETTINGS_FILE,
        include_prompt=read_json(pooling).get("include_prompt", True) is not False,
        dimensions=dense[-1][0] if dense else hidden_size,
        pooling=read_pooling(pooling),
        dense_sizes=tuple(size for size, _ in dense),
        dense_activations=tuple(activation for _, activation in dense),
        normalize=kinds[-1] == "Normalize",
    )


def _with_prompts(path: Path, **settings: Any) -> SentenceEmbedding:
    """Return the task with prompts and similarity of `config_sentence_transformers.json`, which need not exist.

    Raises:
        CheckpointError: the prompts are malformed, or the default one cannot be used.
    """
    values = read_optional_json(path)
    prompts = values.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise CheckpointError(f"{path}: expected prompts to be an object of texts, found {prompts!r:.80}")
    prompts = {name: "" if text is None else text for name, text in prompts.items()}
    similarity = values.get("similarity_fn_name") or "cosine"
    try:
        return SentenceEmbedding(
            prompts=prompts, prompt_name=values.get("default_prompt_name"), similarity=similarity, **settings
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def module_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of modules with weights (`linear.weight`, `linear.bias`) by their names in our head."""
    if not is_sentence_transformers_folder(folder):
        return {}
    found = {f"dense.{number}": path for number, path in enumerate(_folders(folder, "Dense"))}
    pooling = _folders(folder, "Pooling")
    if pooling and _has_weights(pooling[0] / "config.json"):
        found["pooling.score"] = pooling[0]
    return found


def _has_weights(path: Path) -> bool:
    """Return whether the pooling with the settings in `path` is one by attention; it may be one that we do not have."""
    try:
        return read_pooling(path) == "attention"
    except CheckpointError:
        return False


def module_types(folder: Path) -> list[str]:
    """Return the classes of the pipeline's modules without their packages, such as `Transformer` and `Pooling`."""
    return [_kind(module) for module in _modules(folder)]


def _modules(folder: Path) -> list[dict[str, Any]]:
    """Return the modules of the pipeline."""
    path = folder / "modules.json"
    modules: list[Any] = read_json(path, list)
    if not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path}: expected a list of objects with path and type, found {modules!r:.80}")
    return modules


def listed_modules(folder: Path) -> list[tuple[str, Path]]:
    """Return the kind of each module of the pipeline, such as `Dense`, and its folder; the encoder's is `folder`.

    Raises:
        CheckpointError: `modules.json` is malformed, or names folders elsewhere, or one folder twice.
    """
    found: list[tuple[str, Path]] = []
    for module in _modules(folder):
        kind = _kind(module)
        number = sum(kind == other for other, _ in found)
        is_encoder = kind == "Transformer" or module.get("path") == ""
        found.append((kind, folder if is_encoder else _folders(folder, kind)[number]))
    return found


def _kind(module: Mapping[str, Any]) -> str:
    """Return the class of a module, without its Python module."""
    return str(module.get("type", "")).rpartition(".")[2]


def _folders(folder: Path, kind: str) -> list[Path]:
    """Return the folders of the modules of one kind, such as `Dense`, in order."""
    modules = _modules(folder)
    names = [module.get("path") for module in modules if _kind(module) == kind]
    valid = [name for name in names if is_file_name(name)]
    if len(set(valid)) < len(names):
        raise CheckpointError(
            f"{folder / 'modules.json'}: expected {kind} modules in folders next to it, one each, found {names!r:.200}"
        )
    return [folder / name for name in valid]


def read_dense(path: Path) -> tuple[int, str]:
    """Return output width and activation of the dense layer with the settings in `path`."""
    settings: dict[str, Any] = read_json(path)
    activation = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    size = settings.get("out_features")
    if (
        activation not in _ACTIVATIONS
        or not isinstance(size, int)
        or isinstance(size, bool)
        or not 1 <= size <= MAX_SIZE
        or settings.get("use_residual")
    ):
        raise CheckpointError(
            f"{path}: expected out_features of 1 to {MAX_SIZE}, no use_residual and an activation_function of "
            f"{', '.join(_ACTIVATIONS)}, found {settings!r:.200}"
        )
    return size, _ACTIVATIONS[activation]


def read_pooling(path: Path) -> str:
    """Return our name of the pooling with the settings in `path`."""
    settings: dict[str, Any] = read_json(path)
    if "pooling_mode" in settings:
        found = settings["pooling_mode"]
        mode = found[0] if isinstance(found, list) and len(found) == 1 else found
        if not isinstance(mode, str) or mode not in _POOLING_MODES:
            raise CheckpointError(
                f"{path}: expected exactly one pooling_mode of {', '.join(_POOLING_MODES)}, found {found!r:.80}"
            )
        return _POOLING_MODES[mode]
    modes = sorted(key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True)
    if len(modes) != 1 or modes[0] not in _POOLING_KEYS:
        raise CheckpointError(
            f"{path}: expected exactly one of {', '.join(_POOLING_KEYS)} to be true, found {', '.join(modes) or 'none'}"
        )
    return _POOLING_KEYS[modes[0]]


def write_sentence_embedding(folder: Path, task: SentenceEmbedding, hidden_size: int) -> None:
    """Write the settings that `read_sentence_embedding` reads. The weights go into `module_folders(folder)`.

    Args:
        folder: an existing folder to write into.
        task: pooling, dense layers and normalisation.
        hidden_size: width of the encoder's hidden states.
    """
    excluded = {} if task.include_prompt else {"include_prompt": False}
    pooling = {**pooling_config(task.pooling, hidden_size), **excluded}
    layers = zip(pairwise((hidden_size, *task.dense_sizes)), task.dense_activations, strict=True)
    dense = [("Dense", dense_config(*sizes, activation)) for sizes, activation in layers]
    modules = [("Transformer", {}), ("Pooling", pooling), *dense]
    modules += [("Normalize", {})] if task.normalize else []
    write_modules(folder, ((f"sentence_transformers.models.{kind}", settings) for kind, settings in modules))
    if task.prompts or task.similarity != "cosine":
        prompts = {"prompts": dict(task.prompts), "default_prompt_name": task.prompt_name}
        write_json(folder / SETTINGS_FILE, {**prompts, "similarity_fn_name": task.similarity})


def write_modules(folder: Path, modules: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Write `modules.json`, and the settings of each module into a folder of its own, such as `1_Pooling`.

    Args:
        folder: an existing folder to write into, which is the first module's, the encoder's.
        modules: class and settings of each module; none for the encoder, whose settings are the checkpoint's.
    """
    listed = []
    for index, (kind, settings) in enumerate(modules):
        path = f"{index}_{kind.rpartition('.')[2]}" if index else ""
        listed.append({"idx": index, "name": str(index), "path": path, "type": kind})
        (folder / path).mkdir(exist_ok=True)
        if settings:
            write_json(folder / path / "config.json", settings)
    write_json(folder / "modules.json", listed)


def pooling_config(pooling: str, hidden_size: int) -> dict[str, Any]:
    """Return the settings of a pooling in the keys that every release of sentence-transformers reads."""
    # sentence-transformers 6 fails on a key that it does not know, also where it is false.
    known = (pooling, *_POOLING_MODES.values())
    modes = {key: mode == pooling for key, mode in _POOLING_KEYS.items() if mode in known}
    return {"word_embedding_dimension": hidden_size, **modes}


def dense_config(in_features: int, out_features: int, activation: str) -> dict[str, Any]:
    """Return the settings of a dense layer."""
    name = next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == activation)
    module = "linear" if activation == "identity" else "activation"
    path = f"torch.nn.modules.{module}.{name}"
    return {"in_features": in_features, "out_features": out_features, "bias": True, "activation_function": path}
