"""A loaded bundle: texts in, results out."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bert_runtime.batching import length_sorted_batches
from bert_runtime.errors import BundleError, InputError
from bert_runtime.machine import available_cores, has_instruction_set
from bert_runtime.manifest import Asset, Manifest, Variant, sha256_file
from bert_runtime.session import Session
from bert_runtime.tasks import FloatArray, Result, Task
from bert_runtime.tokenization import TextTokenizer, as_text_input, pad

__all__ = ["WINDOW", "Model", "check_asset", "choose_variant", "load"]

_log = logging.getLogger("bert_runtime")

WINDOW = 512
"""Inputs that are sorted by length together: enough to pad little, few enough for `stream` to read ahead and hold."""


def load(
    bundle: str | Path,
    *,
    precision: str = "auto",
    threads: int | None = None,
    max_batch_tokens: int = 1024,
    verify: bool = True,
) -> "Model":
    """Opens a bundle for inference on the CPU.

    Args:
        bundle: the directory that `bert-export export` wrote.
        precision: `auto` takes the bundle's default variant, or FP32 where the processor lacks what that needs;
            `fp32` or `int8` pins one.
        threads: threads per operator; by default the cores that affinity and cgroup grant.
        max_batch_tokens: padded tokens per run when many texts come at once.
        verify: whether to compare the files that will be read with the manifest's hashes.

    Raises:
        BundleError: not a bundle, damaged, or without that precision.
        NewerFormatError: written by a later release.
        MissingExtraError: onnxruntime is not installed.
    """
    path = Path(bundle)
    manifest = Manifest.read(path)
    variant = choose_variant(manifest, precision)
    for asset in (manifest.tokenizer, *variant.assets):
        check_asset(path, asset, verify_hash=verify)
    tokenizer = TextTokenizer.from_file(path / manifest.tokenizer.file, manifest.max_tokens, manifest.pad_token_id)
    session = Session(
        path / variant.model.file, manifest.output.name, available_cores() if threads is None else threads
    )
    return Model(
        manifest.task, tokenizer, session, max_batch_tokens=max_batch_tokens, manifest=manifest, variant=variant
    )


def choose_variant(manifest: Manifest, precision: str) -> Variant:
    """The variant to run on this machine; see `load`."""
    if precision != "auto":
        return manifest.variant(precision)
    variant = manifest.variant(manifest.default_precision)
    if has_instruction_set(variant.instruction_set):
        return variant
    for other in manifest.variants:
        if has_instruction_set(other.instruction_set):
            _log.warning(
                "this processor has no %s, which the %s variant needs to be right; running %s instead",
                variant.instruction_set, variant.precision, other.precision,
            )  # fmt: skip
            return other
    raise BundleError(f"no variant of this bundle runs without {variant.instruction_set}; export one with fp32")


def check_asset(bundle: Path, asset: Asset, *, verify_hash: bool = True) -> None:
    """Raises `BundleError` unless the file is there with the size and hash that the manifest states."""
    path = bundle / asset.file
    if Path(asset.file).name != asset.file:
        raise BundleError(f"{bundle}: the manifest names {asset.file!r}, which is not a plain file name")
    if not path.is_file():
        raise BundleError(f"{path}: the manifest names this file, and it is missing; copy the bundle again")
    if path.stat().st_size != asset.size_bytes:
        raise BundleError(
            f"{path}: expected {asset.size_bytes} bytes, found {path.stat().st_size}; copy the bundle again"
        )
    if verify_hash and (found := sha256_file(path)) != asset.sha256:
        raise BundleError(f"{path}: expected sha256 {asset.sha256}, found {found}; copy the bundle again")


class Model:
    """A tokenizer, a session and a task. Safe to call from many threads; load it again after a fork.

    Use `load` to make one.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: TextTokenizer,
        session: Session,
        *,
        max_batch_tokens: int = 1024,
        manifest: Manifest | None = None,
        variant: Variant | None = None,
    ) -> None:
        if max_batch_tokens < 1:
            raise InputError(f"max_batch_tokens must be at least 1, found {max_batch_tokens}")
        self.task = task
        self.tokenizer = tokenizer
        self.session = session
        self.max_batch_tokens = max_batch_tokens
        self.manifest = manifest
        """What the bundle says; `None` for a graph that is not in a bundle yet."""
        self.variant = variant

    def __repr__(self) -> str:
        precision = self.variant.precision if self.variant is not None else "no bundle"
        return f"Model({self.task.name}, {precision}, {self.session.threads} threads)"

    def __call__(self, inputs: Any) -> Any:
        """One input gives one `Result`; a list (or other sequence that is no tuple) gives a list in the same order.

        An input is a text, a tuple of two texts, or a dict with `text` and `text_pair`.
        """
        if isinstance(inputs, str | tuple | dict):
            return self.task.decode(self.outputs([inputs]))[0]
        if not isinstance(inputs, Sequence):
            raise InputError(
                f"expected a text or a list of texts, found {type(inputs).__name__}; for an iterator use model.stream"
            )
        return self.task.decode(self.outputs(inputs)) if inputs else []

    def stream(self, inputs: Iterable[Any]) -> Iterator[Result]:
        """Results one by one, in order, reading at most a few hundred inputs ahead."""
        iterator = iter(inputs)
        first = 0
        while window := list(islice(iterator, WINDOW)):
            yield from self.task.decode(self.outputs(window, first))
            first += len(window)

    def outputs(self, inputs: Sequence[Any], first: int = 0) -> FloatArray:
        """Raw outputs float32 [N, …] before post-processing, in the order of `inputs`, which is not empty.

        `first` is the number that an error gives the first of `inputs`.
        """
        if len(inputs) > WINDOW:  # so that streaming, evaluating and calling at once make the same batches
            parts = range(0, len(inputs), WINDOW)
            return np.concatenate([self.outputs(inputs[start : start + WINDOW], first + start) for start in parts])
        encodings = self.tokenizer.encode([as_text_input(each) for each in inputs], first)
        if len(encodings) == 1:
            return self.session.run(pad(encodings, self.tokenizer.pad_token_id))
        rows: list[FloatArray] = [np.empty(0)] * len(encodings)
        for indices in length_sorted_batches([len(each) for each in encodings], self.max_batch_tokens):
            batch = pad([encodings[i] for i in indices], self.tokenizer.pad_token_id)
            for i, row in zip(indices, self.session.run(batch), strict=True):
                rows[i] = row
        return np.stack(rows)
