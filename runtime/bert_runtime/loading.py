"""Loading of bundles: choose the variant, the device and the plan, check the files, open the sessions."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from bert_runtime.bundle.manifest import MASKED, UNMASKED, Asset, Manifest, Variant, sha256_file
from bert_runtime.cpu.native_kernels import warn_of_missing_kernels
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
from bert_runtime.runner import Runner
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
"""Padded tokens per batch that fill a GPU. A judgement (not measured on a GPU yet)."""


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
    """Load a bundle for inference.

    If `bert-export tune` has measured the bundle on a machine like this one, its plan sets precision, threads,
    inter_threads and batch size. Another `precision`, `threads` or `inter_threads` turns the plan off.

    Args:
        bundle: the directory that `bert-export export` wrote. Its weights stay memory-mapped while the model lives:
            to update a bundle that is being served, replace the directory, not the bytes of its files.
        precision: `fp32`, `fp16` or `int8`; `auto` takes the bundle's default on the CPU, and FP16 on CUDA if the
            bundle has it.
        device: `cpu`, `cuda`, `tensorrt`, or one of the latter two with a number (`cuda:1`). `auto` takes CUDA if the
            bundle has a variant for it and ONNX Runtime can open it, and the CPU otherwise.
        threads: threads per operator on the CPU, by default the cores that affinity mask and cgroup grant.
        inter_threads: batches run in parallel on the CPU, one thread each, like CTranslate2's `inter_threads` and
            OpenVINO's `num_streams`; 1 to `threads`, by default `threads`. They share a second session. It is opened
            on first use, and holds the weights again where there are no native kernels or the weights are links; 1
            avoids that.
        max_batch_tokens: padded tokens per batch, by default 256 on the CPU (1024 if `inter_threads` is 1 and `threads`
            is not) and 16384 on a GPU.
        kernels: whether native kernels run on the CPU. They replace the operators that they are faster at; without
            them, ONNX Runtime's run. By default they do, unless `bert-export tune` measured otherwise.
        verify: whether to compare the files that are read with the manifest's hashes.

    Returns:
        The model. Call it with a text, a pair of texts or a list of them.

    Raises:
        BundleError: not a bundle, damaged, or without that precision for that device.
        NewerFormatError: the bundle was written by a later release.
        InputError: an argument is out of range.
        MissingExtraError: onnxruntime is not installed.
        CudaUnavailableError: a GPU was asked for and is not available; says why.
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
        if plan.kernels and variant.functions:
            warn_of_missing_kernels()
    else:
        plan, variant = None, choose_gpu_variant(manifest, precision, chosen.kind)
    variants = (variant, *manifest.padding_variants(variant).values())
    for asset in dict.fromkeys((manifest.tokenizer, *(asset for variant in variants for asset in variant.assets))):
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
    """Return the plan that `load` follows on this machine's CPU with these arguments.

    Args:
        manifest: the bundle's manifest.
        measured: the result of `tuned_plan`.
        precision: see `load`; so are the following.
        threads: see `load`.
        inter_threads: see `load`.
        max_batch_tokens: see `load`.

    Raises:
        InputError: an argument is out of range.
        BundleError: the bundle has no such variant for the CPU.
    """
    max_inter_threads = available_cores() if threads is None else threads
    if inter_threads is not None and not 1 <= inter_threads <= max_inter_threads:
        raise InputError(
            f"inter_threads must lie in 1 to {max_inter_threads}, the number of threads, found {inter_threads}"
        )
    if measured is None or precision not in ("auto", measured.precision):  # measured for another precision
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
    """Open a variant of a bundle on a device, which need not be the variant's target.

    Args:
        bundle: the bundle's directory.
        manifest: its manifest.
        variant: the variant. An unmasked one runs each sequence as a batch of its own.
        device: the device.
        plan: how to run on the CPU, by default `default_plan`.
        max_batch_tokens: see `load`.

    Raises:
        BundleError: the files are missing or damaged.
        CudaUnavailableError: the device is not available.
    """
    tokenizer = bundle_tokenizer(bundle, manifest)
    if variant.padding == UNMASKED:
        max_batch_tokens = 1  # each sequence alone, since the graph cannot read padding
    if device != CPU:
        return Model(
            manifest.task, tokenizer, _open_gpu(bundle, manifest, variant, device),
            max_batch_tokens=_GPU_BATCH_TOKENS if max_batch_tokens is None else max_batch_tokens,
            manifest=manifest, variant=variant,
        )  # fmt: skip
    plan = plan or default_plan(variant.precision)
    if max_batch_tokens is not None:
        plan = replace(plan, max_batch_tokens=max_batch_tokens)
    session, parallel = open_session(bundle, manifest, variant, plan.threads, kernels=plan.kernels), None
    if plan.inter_threads > 1:
        open_single_thread = partial(_open_single_thread, bundle, manifest, variant, kernels=plan.kernels)
        parallel = ParallelSessions(session, open_single_thread, plan.inter_threads)
    return Model(
        manifest.task, tokenizer, session, parallel,
        max_batch_tokens=plan.max_batch_tokens, manifest=manifest, variant=variant,
    )  # fmt: skip


def _open_gpu(bundle: Path, manifest: Manifest, variant: Variant, device: Device) -> Runner:
    """Open a session on a GPU, with a router if the variant has other padding modes."""
    if device.kind == "tensorrt":
        return TensorrtSession(bundle, manifest, variant, device)

    def open_now(variant: Variant) -> CudaSession:
        shapes = None if variant.padding == MASKED else NO_BUCKETS
        return CudaSession(bundle / variant.model.file, manifest, device, shapes)

    def open_later(variant: Variant) -> CudaSession:
        _check_assets(bundle, variant)
        return open_now(variant)

    others = manifest.padding_variants(variant) if variant.padding == MASKED else {}
    session = open_now(variant)
    if not others:
        return session
    return PaddingRouter(session, {padding: partial(open_later, other) for padding, other in others.items()})


def _open_single_thread(bundle: Path, manifest: Manifest, variant: Variant, *, kernels: bool) -> Session:
    """Open a single-threaded session, of the same files that were opened before."""
    _check_assets(bundle, variant)
    return open_session(bundle, manifest, variant, 1, kernels=kernels)


def _check_assets(bundle: Path, variant: Variant) -> None:
    """Raise `BundleError` where the bundle was replaced: a variant's files are no longer those of the manifest."""
    for asset in variant.assets:
        check_asset(bundle, asset)


def open_session(bundle: Path, manifest: Manifest, variant: Variant, threads: int, *, kernels: bool = True) -> Session:
    """Open a CPU session for a variant's graph; see `Session` for arguments and errors."""
    path, int8 = bundle / variant.model.file, variant.precision == "int8"
    return Session(path, manifest.output.name, threads, int8=int8, kernels=kernels)


def bundle_tokenizer(bundle: Path, manifest: Manifest) -> TextTokenizer:
    """Return a bundle's tokenizer, configured for its task; raise `BundleError` where it cannot be read."""
    return TextTokenizer.from_file(
        bundle / manifest.tokenizer.file, manifest.max_tokens, manifest.pad_token_id, manifest.task.windows
    )


def choose_variant(manifest: Manifest, precision: str) -> Variant:
    """Return the variant that `load` runs on this CPU.

    Raises:
        BundleError: the bundle has no such variant, or none that this processor can run.
    """
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
    """Return whether this processor computes the variant correctly.

    INT8 is correct without VNNI, too, only slower; see `open_onnxruntime_session`.
    """
    return variant.instruction_set == "vnni" or has_instruction_set(variant.instruction_set)


def _made_for_cuda(manifest: Manifest, precision: str) -> bool:
    """Return whether the bundle has a variant that `load` would run on CUDA."""
    return any(precision in ("auto", variant.precision) for variant in manifest.variants_for("cuda"))


def choose_gpu_variant(manifest: Manifest, precision: str, kind: str = "cuda") -> Variant:
    """Return the variant that `load` runs on a GPU.

    Args:
        manifest: the bundle's manifest.
        precision: see `load`.
        kind: `cuda` or `tensorrt`.

    Raises:
        BundleError: the bundle has no such variant.
    """
    found = manifest.variants_for(kind)
    if not found:
        raise BundleError(f"this bundle has no variant for {kind}; export the checkpoint again with --target {kind}")
    if precision != "auto":
        return manifest.variant(precision, kind)
    return next((variant for variant in found if variant.precision == "fp16"), found[0])


def check_asset(bundle: Path, asset: Asset, *, verify_hash: bool = True) -> None:
    """Raise `BundleError` unless the file exists with the size and hash that the manifest states."""
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
