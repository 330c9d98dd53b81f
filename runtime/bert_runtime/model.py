"""A loaded bundle: texts in, results out."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding

from bert_runtime.batching import length_sorted_batches
from bert_runtime.cuda import CudaSession
from bert_runtime.devices import CPU, Device, cuda_problem, parse_device
from bert_runtime.errors import BundleError, CudaUnavailableError, InputError
from bert_runtime.machine import available_cores, has_instruction_set
from bert_runtime.manifest import Asset, Manifest, Variant, sha256_file
from bert_runtime.session import Session
from bert_runtime.tasks import FloatArray, Outputs, Result, Task
from bert_runtime.tokenization import TextTokenizer, as_text_input, pad

__all__ = ["WINDOW", "Model", "bundle_tokenizer", "can_run", "check_asset", "choose_variant", "load", "open_variant"]

_log = logging.getLogger("bert_runtime")

_BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}
"""Padded tokens per run: few enough for the CPU's caches, and enough to fill a GPU (not measured there yet)."""

WINDOW = 512
"""Inputs that are sorted by length together: enough to pad little, few enough for `stream` to read ahead and hold."""


def load(
    bundle: str | Path,
    *,
    precision: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    max_batch_tokens: int | None = None,
    verify: bool = True,
) -> "Model":
    """Opens a bundle for inference.

    Args:
        bundle: the directory that `bert-export export` wrote.
        precision: on the CPU `auto` takes the bundle's default variant, and on CUDA FP16 if the bundle has it; `fp32`,
            `fp16` or `int8` pins one.
        device: `cpu`, `cuda` or `cuda:1`; `auto` takes CUDA where the bundle has that precision for it and ONNX
            Runtime can open it, and the CPU otherwise.
        threads: threads per operator on the CPU; by default the cores that affinity and cgroup grant.
        max_batch_tokens: padded tokens per run when many texts come at once; by default 1024 on the CPU and 16384 on
            CUDA.
        verify: whether to compare the files that will be read with the manifest's hashes.

    Raises:
        BundleError: not a bundle, damaged, or without that precision for that device.
        NewerFormatError: written by a later release.
        MissingExtraError: onnxruntime is not installed.
        CudaUnavailableError: CUDA was asked for and is not there; the message says why.
    """
    path = Path(bundle)
    manifest = Manifest.read(path)
    place = parse_device(device)
    if place is None and _made_for_cuda(manifest, precision) and cuda_problem() is None:
        try:
            return load(bundle, precision=precision, device="cuda", max_batch_tokens=max_batch_tokens, verify=verify)
        except CudaUnavailableError as error:
            _log.warning("running on the CPU: %s", error)
    place = place or CPU
    variant = choose_variant(manifest, precision) if place == CPU else choose_cuda_variant(manifest, precision)
    for asset in (manifest.tokenizer, *variant.assets):
        check_asset(path, asset, verify_hash=verify)
    return open_variant(path, manifest, variant, place, threads=threads, max_batch_tokens=max_batch_tokens)


def open_variant(
    bundle: Path,
    manifest: Manifest,
    variant: Variant,
    place: Device,
    *,
    threads: int | None = None,
    max_batch_tokens: int | None = None,
) -> "Model":
    """A variant of the bundle on that device, which need not be the variant's target; see `load`."""
    file = bundle / variant.model.file
    tokenizer = bundle_tokenizer(bundle, manifest)
    if place == CPU:
        session: Session | CudaSession = Session(
            file,
            manifest.output.name,
            available_cores() if threads is None else threads,
            int8=variant.precision == "int8",
        )
    else:
        session = CudaSession(file, manifest, place, tokenizer.pad_token_id)
    if max_batch_tokens is None:
        max_batch_tokens = _BATCH_TOKENS[place.kind]
    return Model(
        manifest.task, tokenizer, session, max_batch_tokens=max_batch_tokens, manifest=manifest, variant=variant
    )


def bundle_tokenizer(bundle: Path, manifest: Manifest) -> TextTokenizer:
    """The tokenizer of a bundle, as its task reads texts."""
    return TextTokenizer.from_file(
        bundle / manifest.tokenizer.file, manifest.max_tokens, manifest.pad_token_id, manifest.task.windows
    )


def choose_variant(manifest: Manifest, precision: str) -> Variant:
    """The variant to run on this machine; see `load`."""
    if precision != "auto":
        return manifest.variant(precision)
    variant = manifest.variant(manifest.default_precision)
    if can_run(variant):
        return variant
    for other in manifest.variants_for("cpu"):
        if can_run(other):
            _log.warning(
                "this processor has no %s, which the %s variant was made for; running %s instead",
                variant.instruction_set, variant.precision, other.precision,
            )  # fmt: skip
            return other
    raise BundleError(f"no variant of this bundle runs without {variant.instruction_set}; export one with fp32")


def can_run(variant: Variant) -> bool:
    """Whether this processor computes the variant rightly; without VNNI it does too, only slower, see `Session`."""
    return variant.instruction_set == "vnni" or has_instruction_set(variant.instruction_set)


def _made_for_cuda(manifest: Manifest, precision: str) -> bool:
    """Whether the bundle has what `load` would run on a GPU."""
    return any(precision in ("auto", each.precision) for each in manifest.variants_for("cuda"))


def choose_cuda_variant(manifest: Manifest, precision: str) -> Variant:
    """The variant to run on a GPU; see `load`."""
    found = manifest.variants_for("cuda")
    if not found:
        raise BundleError("this bundle has no variant for cuda; export the checkpoint again with --target cuda")
    if precision != "auto":
        return manifest.variant(precision, "cuda")
    return next((each for each in found if each.precision == "fp16"), found[0])


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
        session: Session | CudaSession,
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
        return f"Model({self.task.name}, {precision}, {self.session.place})"

    def __call__(self, inputs: Any = None, **fields: str) -> Any:
        """One input gives one `Result`; a list (or other sequence that is no tuple) gives a list in the same order.

        An input is a text, a tuple of two texts, or a dict with `text` and `text_pair`, or `question` and `context`.
        These may also be given by name: `model(question="…", context="…")`.
        """
        if fields:
            if inputs is not None:
                raise InputError("give an input either by position or by name, not both")
            if strange := sorted(set(fields) - {"text", "text_pair", "question", "context"}):
                raise InputError(f"expected text and text_pair, or question and context, found {', '.join(strange)}")
            inputs = fields
        if isinstance(inputs, str | tuple | dict):
            return self.task.decode(self.outputs([inputs])[0])
        if not isinstance(inputs, Sequence):
            raise InputError(
                f"expected a text or a list of texts, found {type(inputs).__name__}; for an iterator use model.stream"
            )
        return [self.task.decode(each) for each in self.outputs(inputs)]

    def stream(self, inputs: Iterable[Any]) -> Iterator[Result]:
        """Results one by one, in order, reading at most a few hundred inputs ahead."""
        iterator = iter(inputs)
        first = 0
        while chunk := list(islice(iterator, WINDOW)):
            yield from map(self.task.decode, self.outputs(chunk, first))
            first += len(chunk)

    def configured(self, **options: Any) -> "Model":
        """The same model decoding otherwise, such as `model.configured(top_k=3)`; what may be set is `task.options`.

        Both share one session. Raises `InputError` for an option the task does not have, or a value it cannot take.
        """
        configured = copy(self)
        configured.task = self.task.configured(**options)
        return configured

    def outputs(self, inputs: Sequence[Any], first: int = 0) -> list[Outputs]:
        """Raw outputs before post-processing, in the order of `inputs`.

        `first` is the number that an error gives the first of `inputs`.
        """
        if len(inputs) > WINDOW:  # so that streaming, evaluating and calling at once make the same batches
            parts = range(0, len(inputs), WINDOW)
            return [each for i in parts for each in self.outputs(inputs[i : i + WINDOW], first + i)]
        read = [as_text_input(each) for each in inputs]
        encoded = self.tokenizer.encode(read, first)
        for number, (value, windows) in enumerate(zip(read, encoded, strict=True), start=first):
            if (problem := self.task.problem(value, windows)) is not None:
                raise InputError(f"input {number}: {problem}")
        rows = iter(self._rows([window for windows in encoded for window in windows]))
        return [
            Outputs(value, windows, tuple(islice(rows, len(windows))), self.tokenizer)
            for value, windows in zip(read, encoded, strict=True)
        ]

    def _rows(self, encodings: Sequence[Encoding]) -> list[FloatArray]:
        """The raw output of each encoding, run in batches of similar length."""
        if len(encodings) == 1:
            return self.task.split(self.session.run(pad(encodings, self.tokenizer.pad_token_id)), encodings)
        rows: list[FloatArray] = [np.empty(0)] * len(encodings)
        for indices in length_sorted_batches([len(each) for each in encodings], self.max_batch_tokens):
            chosen = [encodings[i] for i in indices]
            array = self.session.run(pad(chosen, self.tokenizer.pad_token_id))
            for i, row in zip(indices, self.task.split(array, chosen), strict=True):
                rows[i] = row
        return rows
