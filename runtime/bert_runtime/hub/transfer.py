"""Bundles on the Hugging Face hub: `push` uploads one, `pull` downloads one. They need the extra `hub`."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bert_runtime.bundle.assets import check_assets
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.bundle.contents import CARD_NAME, replacement_problem
from bert_runtime.bundle.manifest import MANIFEST_NAME, Manifest
from bert_runtime.errors import BertError, BundleError, HubError
from bert_runtime.hub.access import (
    HUB_ID,
    explain_hub_error,
    hub_error_cause,
    require_hub_client,
    summarize_hub_error,
)

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = ["pull", "push"]


def push(
    bundle: str | Path,
    repo: str,
    *,
    revision: str | None = None,
    private: bool = False,
    message: str = "Upload a bundle of bert-export",
) -> str:
    """Upload a bundle to the hub as one commit, after checking every file against its hash.

    The files that the manifest lists, the manifest and the model card are uploaded; what `tune` measured on this
    machine is not. Other files of the repository stay.

    Args:
        bundle: the bundle's folder.
        repo: the hub id `org/name`, which is created if it is new.
        revision: the branch to commit to, which is created if it is new; by default `main`.
        private: create the repository as a private one.
        message: the commit's message.

    Returns:
        The commit's URL.

    Raises:
        BundleError: the folder is not a bundle, or it is damaged.
        HubError: the hub does not answer or refuses, `private` is asked for and the repository is public, or an
            argument is not valid.
        MissingExtraError: huggingface_hub is not installed.
    """
    repo, _ = _parse_id(repo, with_revision=False)
    _check_commit(revision, message)
    path = Path(bundle)
    files = _checked_files(path)
    with _client(f"uploading to {repo}", repo, revision) as api:
        from huggingface_hub import CommitOperationAdd

        api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.model_info(repo).private:
            raise HubError(f"{repo}: expected a private repository, found a public one; change that on the hub first")
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)
        additions = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=path / name) for name in files]
        return api.create_commit(repo, additions, commit_message=message, revision=revision).commit_url


def pull(name: str, bundle: str | Path, *, force: bool = False) -> Manifest:
    """Download a bundle from the hub, and check every file against its hash.

    The folder appears whole or not at all. Only the files that the manifest lists, the manifest and the model card are
    downloaded.

    Args:
        name: the hub id `org/name`, optionally with `@` and a branch, tag or commit.
        bundle: the folder to write.
        force: replace a bundle that is already there.

    Returns:
        The bundle's manifest.

    Raises:
        BundleError: the repository holds no bundle, or a damaged one.
        HubError: the hub does not answer or refuses.
        MissingExtraError: huggingface_hub is not installed.
        BertError: the folder cannot be written, or holds something else.
    """
    repo, revision = _parse_id(name, with_revision=True)
    output = Path(bundle)
    problem = partial(replacement_problem, output, force=force)
    if found := problem():  # before the hub is asked
        raise BertError(found)
    with _client(f"downloading {name}", repo, revision) as api:
        from huggingface_hub import constants

        info = api.model_info(repo, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    present = {sibling.rfilename for sibling in info.siblings or ()}
    if MANIFEST_NAME not in present:
        raise BundleError(
            f"{name}: expected a bundle (a model on the hub with {MANIFEST_NAME}), found none in commit {info.sha}; "
            "export a checkpoint with: bert-export export CHECKPOINT BUNDLE"
        )
    with atomic_replace_dir(output, problem) as building, _errors_of(name, building):
        _download(repo, info.sha, [MANIFEST_NAME], building)
        assets = _present_assets(Manifest.read(building), name, present)
        _download(repo, info.sha, sorted(assets | ({CARD_NAME} & present)), building)
        _checked_files(building)
        shutil.rmtree(building / ".cache", ignore_errors=True)  # the client's notes on what it has downloaded
    return Manifest.read(output)


def _parse_id(name: str, *, with_revision: bool) -> tuple[str, str | None]:
    """Return repository and revision of a hub id; raise `HubError` if it is none."""
    match = HUB_ID.fullmatch(name) if name.isprintable() else None
    if match is None or (match["revision"] and not with_revision):
        expected = "org/name or org/name@revision" if with_revision else "org/name"
        raise HubError(f"expected a model on the hub, {expected}, found {name!r:.200}")
    return match["repo"], match["revision"]


def _check_commit(revision: str | None, message: str) -> None:
    """Raise `HubError` for the name of a branch, or a message, that no commit can have."""
    if revision is not None and not re.fullmatch(r"[!-~]+", revision):
        raise HubError(f"expected the name of a branch, without blanks, as revision, found {revision!r:.200}")
    if not message.strip():
        raise HubError("expected a message of the commit, found an empty one")


@contextmanager
def _errors_of(name: str, building: Path) -> Iterator[None]:
    """Name the model on the hub, not the temporary folder, in errors of a downloaded bundle."""
    try:
        yield
    except BundleError as error:
        raise BundleError(str(error).replace(f"{building}/", f"{name}: ")) from error


def _present_assets(manifest: Manifest, name: str, present: set[str]) -> set[str]:
    """Return the names of the manifest's files; raise `BundleError` for paths and absent files."""
    names = {asset.file for asset in manifest.assets}
    if wrong := sorted(file for file in names if Path(file).name != file or file in ("", "..")):
        raise BundleError(f"{name}: the manifest names {wrong[0]!r:.200}, which is not a plain file name")
    if absent := sorted(names - present):
        raise BundleError(f"{name}: the manifest names {absent[0]!r:.200}, which the model on the hub does not have")
    return names


def _checked_files(bundle: Path) -> list[str]:
    """Return the names of a bundle's files, each checked against its hash; raise `BundleError` for a damaged one."""
    assets = Manifest.read(bundle).assets
    check_assets(bundle, assets)
    return [
        MANIFEST_NAME,
        *dict.fromkeys(asset.file for asset in assets),
        *([CARD_NAME] if (bundle / CARD_NAME).is_file() else []),
    ]


def _download(repo: str, commit: str | None, names: list[str], folder: Path) -> None:
    with _client(f"downloading {repo}", repo, commit) as api:
        for name in names:
            api.hf_hub_download(repo, name, revision=commit, local_dir=folder)


@contextmanager
def _client(purpose: str, repo: str, revision: str | None) -> "Iterator[HfApi]":
    """Yield the hub's client, and turn the errors of client, network and hub into `HubError`."""
    require_hub_client(purpose)
    from importlib.metadata import version

    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        raise HubError(f"{purpose} needs the hub, and HF_HUB_OFFLINE forbids asking it; set HF_HUB_OFFLINE=0")
    try:
        yield HfApi(library_name="bert-export", library_version=version("bert-export"))
    except BertError:
        raise
    except Exception as error:  # of the hub, the file system, or the HTTP library (httpx or httpx2, by release)
        cause = hub_error_cause(error)
        reason = explain_hub_error(cause, repo, revision) or summarize_hub_error(cause)
        raise HubError(f"{purpose} failed: {reason}") from error
