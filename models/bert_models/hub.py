"""Checkpoints on the Hugging Face hub: resolve an id such as `org/name@revision` to a folder of the local cache.

huggingface_hub's environment variables apply: `HF_HUB_CACHE` (cache folder), `HF_ENDPOINT` (server), `HF_TOKEN`
(login), `HF_HUB_OFFLINE` (cache only).
"""

import logging
import os
from importlib.metadata import version
from pathlib import Path

from bert_models.checkpoint_folder import ADAPTER_CONFIG, check_no_adapter
from bert_models.errors import CheckpointError
from bert_models.sentence_transformers import SETTINGS_NAMES
from bert_models.tokenizer_files import TOKENIZER_FILES
from bert_models.weights import WEIGHT_FILES
from bert_runtime.hub.access import HUB_ID, explain_hub_error, require_hub_client, summarize_hub_error

__all__ = ["CHECKPOINT_FILES", "PICKLE_FILES", "local_checkpoint"]

_LOG = logging.getLogger(__name__)

CHECKPOINT_FILES = (
    "README.md",
    "config.json",
    ADAPTER_CONFIG,
    *(name for name in WEIGHT_FILES if ".safetensors" in name),
    "model-*-of-*.safetensors",
    *TOKENIZER_FILES,
    "modules.json",
    *SETTINGS_NAMES,
    "config_sentence_transformers.json",
    *(f"[1-9]_*/{name}" for name in ("config.json", "model.safetensors", "pytorch_model.bin")),
)
"""Glob patterns of the files to download; a repository on the hub often holds many others. Its card has the licence."""

PICKLE_FILES = (*(name for name in WEIGHT_FILES if ".bin" in name), "pytorch_model-*-of-*.bin")
"""Glob patterns of the weight files to download if there are no safetensors."""

_EXPECTED = "expected a checkpoint (a directory with config.json, or a model of the hub), found no such directory"


def local_checkpoint(name: str | Path) -> Path:
    """Resolve a folder or hub id to a local folder, downloading the model if it is not cached.

    A name that exists on disk or cannot be a hub id (`./a`, `a/b/c`) is a path and returned unchanged. Any other `name`
    or `org/name`, with an optional `@` and branch, tag or commit, is looked up on the hub. The cache alone is used in
    offline mode, and, with a warning, if the hub does not answer or refuses. The lookup times out after
    `HF_HUB_ETAG_TIMEOUT` seconds (10).

    Args:
        name: a folder or a hub id.

    Returns:
        `name` as a path, or a folder of the cache, whose name is the commit.

    Raises:
        CheckpointError: neither the hub nor the cache has the model, or access is refused.
        MissingExtraError: `name` is a hub id and huggingface_hub is not installed.
    """
    match = HUB_ID.fullmatch(name.as_posix() if isinstance(name, Path) else name)
    if match is None or os.path.lexists(name):
        return Path(name)
    require_hub_client(f"{name}: {_EXPECTED}; looking on the hub")
    return _download(str(name), match["repo"], match["revision"])


def _download(name: str, repo: str, revision: str | None) -> Path:
    """Return the model's folder in the cache, updated if the hub answers."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled, RevisionNotFoundError

    problem = _hub_problem(repo, revision)
    try:
        if isinstance(problem, RevisionNotFoundError):  # the cache may still hold an older state of the branch or tag
            raise problem
        folder = _snapshot(repo, revision, CHECKPOINT_FILES, cached=problem is not None)
        if "weights" in _missing_parts(folder):
            _snapshot(repo, folder.name, ("config.json", *PICKLE_FILES), cached=problem is not None)
        missing = _missing_parts(folder)
        if problem is not None and missing:
            raise problem
    except Exception as error:  # of the file system, the hub, or the HTTP library (httpx or httpx2, by release)
        cause = problem or (error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None) or error
        raise CheckpointError(f"{name}: {_EXPECTED}, and {_reason(cause, repo, revision)}") from cause
    if missing:
        check_no_adapter(folder)
        raise CheckpointError(
            f"{name}: expected a checkpoint (config.json and weights in one of {', '.join(WEIGHT_FILES)}), "
            f"found a model on the hub (commit {folder.name}) without {' and '.join(missing)}"
        )
    if problem is not None and not isinstance(problem, OfflineModeIsEnabled):
        _LOG.warning("%s: %s; using commit %s from the cache", name, summarize_hub_error(problem), folder.name)
    return folder


def _missing_parts(folder: Path) -> list[str]:
    """Return the required parts of a checkpoint, `config.json` and `weights`, that `folder` lacks."""
    parts = {"config.json": ["config.json"], "weights": WEIGHT_FILES}
    return [part for part, names in parts.items() if not any((folder / name).is_file() for name in names)]


def _hub_problem(repo: str, revision: str | None) -> Exception | None:
    """Ask the hub for the revision, with a timeout, which `snapshot_download` lacks. Return the error, if any."""
    from huggingface_hub import HfApi, constants

    try:
        HfApi().model_info(repo, revision=revision or "main", timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # see `_download`
        return error
    return None


def _snapshot(repo: str, revision: str | None, patterns: tuple[str, ...], *, cached: bool) -> Path:
    """Return the cache folder with the revision's files that match `patterns`; `cached` does not ask the hub."""
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        repo,
        revision=revision,
        allow_patterns=list(patterns),
        local_files_only=cached,
        library_name="bert-export",
        library_version=version("bert-export"),
    )
    return Path(folder)


def _reason(problem: BaseException, repo: str, revision: str | None) -> str:
    """Explain why the model is not available, and what to do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    hub, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    if isinstance(problem, OfflineModeIsEnabled):
        return (
            f"the hub's cache {cache} does not have all of its files while HF_HUB_OFFLINE forbids asking the hub; "
            "check the spelling, or get it once with HF_HUB_OFFLINE=0"
        )
    return explain_hub_error(problem, repo, revision) or (
        f"getting {repo!r} from the hub {hub} failed ({summarize_hub_error(problem)}), and its cache {cache} does not "
        "have it"
    )
