"""Opening a bundle: which variant runs, where, and on how much of the machine."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from bert_runtime.bundle.manifest import MASKED, UNMASKED, Asset, Manifest, Variant, sha256_file
from bert_runtime.cpu.parallel_sessions import ParallelSessions
from bert_runtime.cpu.session import Session
from bert_runtime.devices import CPU, Device, cuda_unavailable_reason, parse_device
from bert_runtime.errors import BundleError, CudaUnavailableError, InputError
from bert_runtime.gpu.cuda_session import CudaSession
from bert_runtime.gpu.padding_router import PaddingRouter
from bert_runtime.gpu.shape_buckets import NO_BUCKETS
from bert_runtime.gpu.tensorrt_session import TensorrtSession
from bert_runtime.machine import available_cores, has_instruction_set
from bert_runtime.model import Model
from bert_runtime.plan import Plan, default_plan, tuned_plan
from bert_runtime.tokenization import TextTokenizer

__all__ = [
    "bundle_tokenizer",
    "can_run",
    "check_asset",
    "choose_gpu_variant",
    "choose_variant",
    "cpu_plan",
    "load",
    "open_session",
    "open_variant",
]

_log = logging.getLogger("bert_runtime")

_GPU_BATCH_TOKENS = 16384
"""Padded tokens per run: enough to fill a GPU (not measured there yet)."""


def load(
    bundle: str | Path,
    *,
    precision: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    inter_threads: int | None = None,
    max_batch_tokens: int | None = None,
    kernels: bool | None = None,
    verify: bool = True,
) -> Model:
    """Opens a bundle for inference.

    Where `bert-export tune` measured the bundle on a machine like this one, precision, threads, parallel runs and batch
    size are those that it found; giving another precision, `threads` or `inter_threads` turns that off.

    Args:
        bundle: the directory that `bert-export export` wrote. Its weights stay mapped as long as the model lives:
            replace the directory, and not the bytes of its files, while it is served.
        precision: on the CPU `auto` takes the bundle's default variant, and on CUDA FP16 if the bundle has it; `fp32`,
            `fp16` or `int8` pins one.
        device: `cpu`, `cuda`, `tensorrt`, or these two with a number, as `cuda:1`; `auto` takes CUDA where the bundle
            has that precision for it and ONNX Runtime can open it, and the CPU otherwise.
        threads: threads per operator on the CPU; by default the cores that affinity and cgroup grant.
        inter_threads: runs of one thread side by side on the CPU where there are several batches or callers; at most
            and by default as many as threads. They have a session of their own, which without our own kernels, or
            where the bundle's weights are links, holds them a second time from the first such call on; 1 spares that.
        max_batch_tokens: padded tokens per run when many texts come at once; by default 256 on the CPU, 1024 where
            a run alone has several threads, and 16384 on CUDA.
        kernels: whether a variant on the CPU runs our own kernels for what they are faster at, see
            `cpu/native_kernels.py`; without them the same operators run in ONNX Runtime's. By default it does, unless
            `tune` measured otherwise.
        verify: whether to compare the files that will be read with the manifest's hashes.

    Raises:
        BundleError: not a bundle, damaged, or without that precision for that device.
        NewerFormatError: written by a later release.
        MissingExtraError: onnxruntime is not installed.
        CudaUnavailableError: CUDA was asked for and is not there; the message says why.
    """
    path = Path(bundle)
    manifest = Manifest.read(path)
    chosen = parse_device(device)
    if chosen is None and _made_for_cuda(manifest, precision) and cuda_unavailable_reason() is None:
        try:
            return load(bundle, precision=precision, device="cuda", max_batch_tokens=max_batch_tokens, verify=verify)
        except CudaUnavailableError as error:
            _log.warning("running on the CPU: %s", error)
    chosen = chosen or CPU
    if chosen == CPU:
        plan = cpu_plan(manifest, tuned_plan(path), precision, threads, inter_threads, max_batch_tokens)
        if kernels is not None:
            plan = replace(plan, kernels=kernels)
        variant = manifest.variant(plan.precision)
    else:
        plan, variant = None, choose_gpu_variant(manifest, precision, chosen.kind)
    variants = (variant, *manifest.padding_variants(variant).values())
    for asset in dict.fromkeys((manifest.tokenizer, *(asset for each in variants for asset in each.assets))):
        check_asset(path, asset, verify_hash=verify)
    return open_variant(path, manifest, variant, chosen, plan=plan, max_batch_tokens=max_batch_tokens)


def cpu_plan(
    manifest: Manifest,
    measured: Plan | None,
    precision: str = "auto",
    threads: int | None = None,
    inter_threads: int | None = None,
    max_batch_tokens: int | None = None,
) -> Plan:
    """What `load` does on this machine's CPU with those arguments, see there; `measured` is what `tuned_plan` found."""
    most = available_cores() if threads is None else threads
    if inter_threads is not None and not 1 <= inter_threads <= most:
        raise InputError(f"inter_threads must lie in 1 to {most}, the threads, found {inter_threads}")
    if measured is None or precision not in ("auto", measured.precision):  # what another precision took says little
        plan = default_plan(choose_variant(manifest, precision).precision, threads, inter_threads)
    elif threads not in (None, measured.threads) or inter_threads not in (None, measured.inter_threads):
        plan = replace(default_plan(measured.precision, threads, inter_threads), kernels=measured.kernels)
    else:
        plan = measured
    return plan if max_batch_tokens is None else replace(plan, max_batch_tokens=max_batch_tokens)


def open_variant(
    bundle: Path,
    manifest: Manifest,
    variant: Variant,
    device: Device,
    *,
    plan: Plan | None = None,
    max_batch_tokens: int | None = None,
) -> Model:
    """A variant of the bundle on that device, which need not be the variant's target.

    `plan` is for the CPU; see `load`. One that takes no padding reads each row alone.
    """
    tokenizer = bundle_tokenizer(bundle, manifest)
    if variant.padding == UNMASKED:
        max_batch_tokens = 1  # each row alone, since padding is what it cannot take
    if device != CPU:
        return Model(
            manifest.task, tokenizer, _open_gpu(bundle, manifest, variant, device),
            max_batch_tokens=_GPU_BATCH_TOKENS if max_batch_tokens is None else max_batch_tokens,
            manifest=manifest, variant=variant,
        )  # fmt: skip
    plan = plan or default_plan(variant.precision)
    if max_batch_tokens is not None:
        plan = replace(plan, max_batch_tokens=max_batch_tokens)
    session, many = open_session(bundle, manifest, variant, plan.threads, kernels=plan.kernels), None
    if plan.inter_threads > 1:
        again = partial(_open_again, bundle, manifest, variant, kernels=plan.kernels)
        many = ParallelSessions(session, again, plan.inter_threads)
    return Model(
        manifest.task, tokenizer, session, many,
        max_batch_tokens=plan.max_batch_tokens, manifest=manifest, variant=variant,
    )  # fmt: skip


def _open_gpu(
    bundle: Path, manifest: Manifest, variant: Variant, device: Device
) -> CudaSession | PaddingRouter | TensorrtSession:
    """A session on a GPU, with those of the variant's other paddings beside it if there are any."""
    if device.kind == "tensorrt":
        return TensorrtSession(bundle, manifest, variant, device)

    def opened(variant: Variant) -> CudaSession:
        shapes = None if variant.padding == MASKED else NO_BUCKETS
        return CudaSession(bundle / variant.model.file, manifest, device, manifest.pad_token_id, shapes)

    def opened_later(variant: Variant) -> CudaSession:
        _check_assets(bundle, variant)
        return opened(variant)

    others = manifest.padding_variants(variant) if variant.padding == MASKED else {}
    session = opened(variant)
    if not others:
        return session
    return PaddingRouter(session, {padding: partial(opened_later, each) for padding, each in others.items()})


def _open_again(bundle: Path, manifest: Manifest, variant: Variant, *, kernels: bool) -> Session:
    """A session of one thread, of the very files that were opened before."""
    _check_assets(bundle, variant)
    return open_session(bundle, manifest, variant, 1, kernels=kernels)


def _check_assets(bundle: Path, variant: Variant) -> None:
    """Raises `BundleError` where a variant's files are no longer those of the manifest: the bundle was replaced."""
    for asset in variant.assets:
        check_asset(bundle, asset)


def open_session(bundle: Path, manifest: Manifest, variant: Variant, threads: int, *, kernels: bool = True) -> Session:
    """A session on the CPU for a variant's graph."""
    path, int8 = bundle / variant.model.file, variant.precision == "int8"
    return Session(path, manifest.output.name, threads, int8=int8, kernels=kernels)


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


def choose_gpu_variant(manifest: Manifest, precision: str, kind: str = "cuda") -> Variant:
    """The variant to run on a GPU, by `cuda` or `tensorrt`; see `load`."""
    found = manifest.variants_for(kind)
    if not found:
        raise BundleError(f"this bundle has no variant for {kind}; export the checkpoint again with --target {kind}")
    if precision != "auto":
        return manifest.variant(precision, kind)
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
