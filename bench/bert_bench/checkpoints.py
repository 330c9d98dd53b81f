"""The checkpoint that compared engines run; reading and exporting it needs PyTorch and happens in a worker."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from bert_bench.errors import BenchError
from bert_runtime import Manifest
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.errors import MissingExtraError

__all__ = ["CheckpointInfo", "EncoderSize", "check_checkpoint", "export_bundle", "find_checkpoint"]


@dataclass(frozen=True, kw_only=True)
class EncoderSize:
    """The sizes of an encoder that determine its FLOPs."""

    layers: int
    hidden_size: int
    intermediate_size: int

    def flops(self, batch: int, tokens: int) -> int:
        """Return the FLOPs of the encoder's matmuls on `batch` sequences of `tokens` tokens; a multiply-add is 2.

        Per layer and token: 8·h² for the four projections of attention, 4·h·i for the feed-forward block and 4·S·h for
        attention itself. Embeddings and head are left out. Work that an engine skips is counted all the same.
        """
        h, i = self.hidden_size, self.intermediate_size
        return batch * tokens * self.layers * (8 * h * h + 4 * h * i + 4 * tokens * h)


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """Facts about a checkpoint that are read before any engine runs it."""

    path: Path
    sha256: str
    """Hash of the weights, as in a bundle's manifest."""
    size: EncoderSize
    key: str
    """Hash of the weights, configuration and vocabulary: the key of cached artifacts."""


def find_checkpoint(manifest: Manifest, given: str | Path | None) -> tuple[str | Path, str | None]:
    """Find the checkpoint to compare with.

    Args:
        manifest: the bundle's manifest, which names its source.
        given: a folder or hub id that takes precedence.

    Returns:
        A folder or hub id, and the SHA-256 that its weights must have (`None`: any).

    Raises:
        BenchError: none was given, and the bundle's source is not named or no longer there.
    """
    if given is not None:
        return given, None
    path, sha256 = manifest.source.get("path"), manifest.source.get("sha256")
    if not path or not sha256:
        raise BenchError("the bundle does not name the checkpoint it was made from; name it with --checkpoint")
    if revision := manifest.source.get("revision"):
        return f"{path.partition('@')[0]}@{revision}", sha256
    if not Path(path).is_dir():
        raise BenchError(
            f"the checkpoint that the bundle was made from is no longer at {path}; name it with --checkpoint"
        )
    return Path(path), sha256


def check_checkpoint(name: str | Path, sha256: str | None, uncompressed: str | None = None) -> CheckpointInfo:
    """Return facts about a checkpoint.

    Args:
        name: a folder or a hub id.
        sha256: the hash that its weights must have; `None` for any.
        uncompressed: another one that they may have.

    Raises:
        BenchError: the weights have another hash.
        CheckpointError: it cannot be read.
        MissingExtraError: PyTorch is not installed.
    """
    try:
        import torch  # noqa: F401 - check that it is installed

        from bert_models import open_checkpoint
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "export", "comparing with PyTorch") from None
    checkpoint = open_checkpoint(name)
    actual = checkpoint.sha256()
    if sha256 is not None and actual not in (sha256, uncompressed):
        raise BenchError(
            f"the checkpoint {name} has changed since the bundle was made: expected sha256 {sha256[:12]}…, found "
            f"{actual[:12]}…; export it again, or name the right one with --checkpoint"
        )
    config = checkpoint.config
    size = EncoderSize(
        layers=config.num_layers, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size
    )
    return CheckpointInfo(path=checkpoint.path, sha256=actual, size=size, key=_key(checkpoint.path, actual))


def _key(folder: Path, weights_sha256: str) -> str:
    """Hash a checkpoint's weights, configuration and vocabulary, in its folder and sentence-transformers modules."""
    digest = hashlib.sha256(weights_sha256.encode())
    for path in sorted(path for pattern in ("*", "[0-9]_*/*") for path in folder.glob(pattern) if path.is_file()):
        if path.suffix in (".json", ".txt", ".model"):
            digest.update(f"{path.relative_to(folder)} {sha256_file(path)}\n".encode())
    return digest.hexdigest()


def export_bundle(checkpoint: Path, bundle: Path) -> None:
    """Export the checkpoint as `bert-export export` does by default."""
    from bert_export import export

    export(checkpoint, bundle)
