"""Model repositories: the folders that a Triton server loads its models from."""

import errno
import os
import re
import shutil
from functools import partial
from pathlib import Path

from bert_runtime.bundle.assets import check_assets
from bert_runtime.bundle.atomic_folders import atomic_replace_dir, is_free
from bert_runtime.bundle.contents import CARD_NAME
from bert_runtime.bundle.manifest import MANIFEST_NAME, Manifest
from bert_runtime.bundle.stable_reads import read_unreplaced
from bert_runtime.cascade import CascadeManifest
from bert_runtime.errors import BertError, CascadeBundleError, InputError
from bert_runtime.plan import TUNING_NAME
from bert_serve.triton.model_config import ModelConfig

__all__ = ["backend_path", "write_model"]

_CONFIG = "config.pbtxt"
_VERSION = "1"
_BACKEND = "model.py"


def write_model(
    bundle: str | Path,
    repository: str | Path,
    *,
    name: str | None = None,
    config: ModelConfig | None = None,
    link: bool = False,
    force: bool = False,
) -> Path:
    """Write a bundle into a Triton model repository, as a model of its own folder.

        REPOSITORY/NAME/config.pbtxt
        REPOSITORY/NAME/1/            model.py, the Python backend
        REPOSITORY/NAME/1/bundle/     the bundle or cascade, its files checked against their hashes

    The model's folder appears whole or not at all; the repository's other models stay as they are.

    Args:
        bundle: the bundle's folder.
        repository: the repository's folder, which is created if it is new.
        name: the model's name, by default that of the bundle's folder.
        config: what config.pbtxt says.
        link: make hard links to the bundle's files instead of copies.
        force: replace a model that was written before.

    Returns:
        The model's folder.

    Raises:
        BundleError: not a bundle, a damaged one, or one without the precision that `config` names.
        InputError: the name is none that Triton takes.
        BertError: the folder is there already, or cannot be written.
    """
    source = Path(bundle)
    name = source.resolve().name if name is None else name
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise InputError(f"expected a model's name of letters, digits, '_', '-' and '.', found {name!r}; give another")
    output = Path(repository) / name
    config = config or ModelConfig()
    with atomic_replace_dir(output, partial(_replacement_problem, output, force=force)) as building:
        version = building / _VERSION
        version.mkdir()
        manifests = read_unreplaced(source, partial(_copy_models, source, version / "bundle", link=link))
        for manifest in manifests:
            config.check(manifest)
        shutil.copyfile(backend_path(), version / _BACKEND)
        (building / _CONFIG).write_text(config.text(name, manifests[-1].task), encoding="utf-8")
    return output


def backend_path() -> Path:
    """Return the Python backend that becomes a model's `model.py`."""
    return Path(__file__).with_name("backend.py")


def _replacement_problem(output: Path, *, force: bool) -> str | None:
    """Return why a model may not be written to `output`, or `None` if it may."""
    if is_free(output):
        return None
    if not (output / _VERSION / "bundle" / MANIFEST_NAME).is_file():
        return f"{output}: exists and is not a model that bert-export wrote; choose another name"
    return None if force else f"{output}: the model is already there; replace it with --force, or choose another name"


def _copy_models(source: Path, output: Path, *, link: bool) -> list[Manifest]:
    """Copy or link a bundle, or both of a cascade, into a new folder; return the manifests, the large model's last."""
    shutil.rmtree(output, ignore_errors=True)  # what an attempt left that found the bundle replaced
    try:
        return [_copy_bundle(source, output, link=link)]
    except CascadeBundleError:
        parts = CascadeManifest.read(source).parts
    output.mkdir()
    shutil.copyfile(source / MANIFEST_NAME, output / MANIFEST_NAME)
    return [_copy_bundle(source / part.folder, output / part.folder, link=link) for part in parts]


def _copy_bundle(source: Path, output: Path, *, link: bool) -> Manifest:
    """Copy or link a bundle's files into a new folder, after checking them against their hashes."""
    manifest = Manifest.read(source)
    check_assets(source, manifest.assets)
    output.mkdir()
    optional = [name for name in (TUNING_NAME, CARD_NAME) if (source / name).is_file()]
    for file in dict.fromkeys([MANIFEST_NAME, *(asset.file for asset in manifest.assets), *optional]):
        if link:
            _link(source / file, output / file)
        else:
            shutil.copyfile(source / file, output / file)
    return manifest


def _link(source: Path, output: Path) -> None:
    try:
        os.link(source.resolve(), output)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP):
            raise
        raise BertError(
            f"{source}: cannot be hard-linked from the repository's file system ({error.strerror}); "
            "copy it, without --link"
        ) from error
