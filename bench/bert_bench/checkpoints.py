"""The checkpoint that the peers run, checked where PyTorch is: in a worker."""

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
    """What decides how much arithmetic an encoder does."""

    layers: int
    hidden_size: int
    intermediate_size: int

    def flops(self, rows: int, tokens: int) -> int:
        """FLOPs of the encoder's matrix products on `rows` sequences of `tokens` tokens; a multiply-add is 2.

        Per layer and token 8·h² for the four projections of attention, 4·h·i for the feed-forward block and 4·S·h for
        attention itself. Embeddings and head are left out, and so is what a fusion saves: it is the work that was
        asked for.
        """
        h, i = self.hidden_size, self.intermediate_size
        return rows * tokens * self.layers * (8 * h * h + 4 * h * i + 4 * tokens * h)


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """What is known about a checkpoint before any engine runs it."""

    path: Path
    sha256: str
    """Over the weights, as a bundle states it."""
    size: EncoderSize
    key: str
    """Changes with the weights and with every other file that says what is made of them."""


def find_checkpoint(manifest: Manifest, given: str | Path | None) -> tuple[str | Path, str | None]:
    """The checkpoint to compare with, a folder or a hub id, and the hash that its weights must have (`None`: any).

    Raises `BenchError` where there is none.
    """
    if given is not None:
        return given, None
    path, sha256 = manifest.source.get("path"), manifest.source.get("sha256")
    if not path or not sha256:
        raise BenchError("the bundle does not say which checkpoint it was made from; name it with --checkpoint")
    if revision := manifest.source.get("revision"):
        return f"{path.partition('@')[0]}@{revision}", sha256
    if not Path(path).is_dir():
        raise BenchError(
            f"the checkpoint that the bundle was made from is not at {path} any more; name it with --checkpoint"
        )
    return Path(path), sha256


def check_checkpoint(name: str | Path, sha256: str | None) -> CheckpointInfo:
    """The checkpoint as it is; raises unless PyTorch is installed and the weights have that hash."""
    try:
        import torch  # noqa: F401 - whether it is there

        from bert_models import open_checkpoint
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "export", "comparing with PyTorch") from None
    checkpoint = open_checkpoint(name)
    found = checkpoint.sha256()
    if sha256 is not None and found != sha256:
        raise BenchError(
            f"the checkpoint {name} has changed since the bundle was made (sha256 {found[:12]}… now, {sha256[:12]}… "
            "then); export it again, or name the right one with --checkpoint"
        )
    config = checkpoint.config
    size = EncoderSize(
        layers=config.num_layers, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size
    )
    return CheckpointInfo(path=checkpoint.path, sha256=found, size=size, key=_key(checkpoint.path, found))


def _key(folder: Path, weights: str) -> str:
    """A hash over a checkpoint's weights, configuration and vocabulary, in its folder and those of its modules."""
    digest = hashlib.sha256(weights.encode())
    for path in sorted(each for pattern in ("*", "[0-9]_*/*") for each in folder.glob(pattern) if each.is_file()):
        if path.suffix in (".json", ".txt", ".model"):
            digest.update(f"{path.relative_to(folder)} {sha256_file(path)}\n".encode())
    return digest.hexdigest()


def export_bundle(checkpoint: Path, bundle: Path) -> None:
    """Exports the checkpoint as `bert-export export` does by default."""
    from bert_export import export

    export(checkpoint, bundle)
