"""Verification of a cascade: its manifest, and both bundles."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bert_runtime.bundle.manifest import MANIFEST_NAME
from bert_runtime.cascade.manifest import CascadeManifest, check_part
from bert_runtime.errors import BundleError

if TYPE_CHECKING:
    from bert_runtime.verification import Check

__all__ = ["verify_cascade"]


def verify_cascade(
    bundle: Path,
    check: "type[Check]",
    check_manifest: "Callable[[Path], Check]",
    verify: "Callable[[Path], list[Check]]",
) -> "list[Check]":
    """Check a cascade: its manifest, the manifests of the parts against their hashes, and each part.

    Args:
        bundle: the cascade's directory.
        check: makes a check.
        check_manifest: compares a manifest with its digest.
        verify: checks the bundle of one model.
    """
    checks = [check_manifest(bundle)]
    for part in CascadeManifest.read(bundle, verify=False).parts:
        name = f"{part.folder}/{MANIFEST_NAME}"
        try:
            check_part(bundle, part)
        except BundleError as error:
            checks.append(check(name, False, str(error)))
        else:
            checks.append(check(name, True, "sha256 as recorded"))
        try:
            checks += [replace(found, name=f"{part.folder}: {found.name}") for found in verify(bundle / part.folder)]
        except BundleError as error:
            checks.append(check(part.folder, False, str(error)))
    return checks
