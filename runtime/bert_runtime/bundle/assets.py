"""Checks of a bundle's files against its manifest."""

from collections.abc import Iterable
from pathlib import Path

from bert_runtime.bundle.manifest import Asset, sha256_file
from bert_runtime.errors import BundleError

__all__ = ["check_asset", "check_assets"]


def check_assets(bundle: Path, assets: Iterable[Asset], *, verify_hash: bool = True, allow_links: bool = False) -> None:
    """Check several files, each once; see `check_asset`."""
    for asset in dict.fromkeys(assets):
        check_asset(bundle, asset, verify_hash=verify_hash, allow_links=allow_links)


def check_asset(bundle: Path, asset: Asset, *, verify_hash: bool = True, allow_links: bool = False) -> None:
    """Raise `BundleError` unless the file exists inside the bundle with the size and hash that the manifest states.

    Args:
        bundle: the bundle's directory.
        asset: the file.
        verify_hash: whether to compare the hash.
        allow_links: whether the file may be a link out of the bundle. Those of a Hugging Face cache, from
            `snapshots/REVISION` to `blobs` of the same repository, are always allowed.
    """
    path = bundle / asset.file
    if Path(asset.file).name != asset.file:
        raise BundleError(f"{bundle}: the manifest names {asset.file!r}, which is not a plain file name")
    if not _is_file(path):
        raise BundleError(f"{path}: the manifest names this file, and it is missing; copy the bundle again")
    if not allow_links and path.is_symlink():
        _check_link(bundle, path)
    try:
        if (size := path.stat().st_size) != asset.size_bytes:
            raise BundleError(f"{path}: expected {asset.size_bytes} bytes, found {size}; copy the bundle again")
        if verify_hash and (found := sha256_file(path)) != asset.sha256:
            raise BundleError(f"{path}: expected sha256 {asset.sha256}, found {found}; copy the bundle again")
    except OSError as error:  # such as a file that another user may not read
        raise BundleError(f"{path}: cannot be read: {error.strerror or error}") from None


def _is_file(path: Path) -> bool:
    """Return whether a path leads to a file; false also for names that the system refuses, such as very long ones."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _check_link(bundle: Path, path: Path) -> None:
    """Raise `BundleError` for a link that leads neither into the bundle nor into the same Hugging Face cache."""
    folder, target = bundle.resolve(), path.resolve()
    snapshots = next((parent for parent in folder.parents if parent.name == "snapshots"), None)
    blobs = None if snapshots is None else snapshots.parent / "blobs"
    if not target.is_relative_to(folder) and target.parent != blobs:
        raise BundleError(
            f"{path}: is a link out of the bundle, to {target}; copy the bundle with the files that its links lead to "
            "(cp -rL), or allow such links with load(…, allow_links=True)"
        )
