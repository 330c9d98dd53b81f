"""Loading of bundles: choose the variant, the device and the plan, check the files, open the sessions."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bert_runtime.bundle.assets import check_assets
from bert_runtime.bundle.graph_checks import check_graph
from bert_runtime.bundle.manifest import MANIFEST_NAME, MASKED, UNMASKED, Asset, Manifest, Variant
from bert_runtime.bundle.output_shape import check_output_shape
from bert_runtime.bundle.stable_reads import read_unreplaced
from bert_runtime.cpu.native_kernels import warn_of_missing_kernels
from bert_runtime.cpu.parallel_sessions import ParallelSessions
from bert_runtime.cpu.session import Session
from bert_runtime.devices import CPU, Device, parse_device
from bert_runtime.errors import BundleError, CascadeBundleError, CudaUnavailableError, InputError
from bert_runtime.gpu.cuda_session import CudaSession
from bert_runtime.gpu.padding_router import PaddingRouter
from bert_runtime.gpu.shape_buckets import NO_BUCKETS
from bert_runtime.gpu.tensorrt_session import TensorrtSession
from bert_runtime.model import Model
from bert_runtime.plan import Plan, default_plan, tuned_plan, whole_batch_tokens
from bert_runtime.runner import Runner
from bert_runtime.tokenization import TextTokenizer
from bert_runtime.variant_choice import choose_gpu_variant, cpu_plan, gains_speed, is_for_cuda

__all__ = [
    "bundle_tokenizer",
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
    allow_links: bool = False,
    mapped: bool = True,
) -> Model:
    """Load a bundle for inference.

    If `bert-export tune` has measured the bundle on a machine like this one, its plan sets precision, threads,
    inter_threads, batch size and kernels. Other `threads` or `inter_threads` keep its precision and kernels alone;
    another `precision` turns the plan off.

    Args:
        bundle: the directory that `bert-export export` wrote. To update a bundle that is being served, replace the
            directory, not the bytes of its files, see `mapped`.
        precision: `fp32`, `fp16`, `int8` or `bf16`; `auto` takes the one that `tune` measured as fastest on the CPU,
            or else the bundle's default, and FP16 on CUDA if the bundle has it.
        device: `cpu`, `cuda`, `tensorrt`, or one of the latter two with a number (`cuda:1`). `auto` takes CUDA if the
            bundle has a variant for it and ONNX Runtime can open it, and the CPU otherwise.
        threads: threads per operator on the CPU, by default as `tune` measured, or else the cores that affinity mask
            and cgroup grant.
        inter_threads: batches run in parallel on the CPU, one thread each, like CTranslate2's `inter_threads` and
            OpenVINO's `num_streams`; 1 to `threads`, by default `threads`. They share a second session. It is opened
            on first use, and holds the weights again where there are no native kernels or the weights are links; 1
            avoids that.
        max_batch_tokens: padded tokens per batch, by default 256 on the CPU (1024 if `inter_threads` is 1 and `threads`
            is not) and 16384 on a GPU. By default, also, inputs of at most 1024 tokens together are one batch on two
            threads with native kernels.
        kernels: whether native kernels run on the CPU. They replace the operators that they are faster at; without
            them, ONNX Runtime's run. By default they do, unless `bert-export tune` measured otherwise.
        verify: whether to compare the manifest with its own digest, and the files that are read with its hashes.
        allow_links: whether files of the bundle may be links out of it. Those of a Hugging Face cache always may.
        mapped: whether weights stay memory-mapped on the CPU while the model lives, so that processes share them. Bytes
            that are written to a mapped file change the model's outputs, and a file that is cut short ends the process
            (SIGBUS). Otherwise each session reads them into memory of its own, for folders that others may write to.

    Returns:
        The model (of a cascade, a `bert_runtime.cascade.Cascade`). Call it with a text, a pair of texts or a list of
        them.

    Raises:
        BundleError: not a bundle, damaged, or without that precision for that device.
        NewerFormatError: the bundle was written by a later release.
        InputError: an argument is out of range.
        MissingExtraError: onnxruntime is not installed.
        DeploymentError: onnxruntime is too old.
        CudaUnavailableError: a GPU was asked for and is not available; says why.
    """
    options = _Options(
        precision, device, threads, inter_threads, max_batch_tokens, kernels, verify, allow_links, mapped
    )
    return read_unreplaced(Path(bundle), partial(_load, Path(bundle), options))


class _Options(NamedTuple):
    """The arguments of `load`."""

    precision: str
    device: str
    threads: int | None
    inter_threads: int | None
    max_batch_tokens: int | None
    kernels: bool | None
    verify: bool
    allow_links: bool
    mapped: bool


def _load(path: Path, options: _Options) -> Model:
    """Load a bundle that is not replaced meanwhile, see `load`."""
    try:
        manifest = Manifest.read(path, verify=options.verify)
    except CascadeBundleError:
        return _load_cascade(path, options)
    chosen = parse_device(options.device)
    if chosen is None and is_for_cuda(manifest, options.precision):
        try:
            return _load(path, options._replace(device="cuda"))
        except CudaUnavailableError as error:
            _log.warning("running on the CPU: %s", error)
    chosen = chosen or CPU
    if chosen == CPU:
        plan = _chosen_plan(path, manifest, options)
        variant = manifest.variant(plan.precision)
        if plan.kernels and variant.functions:
            warn_of_missing_kernels()
        elif variant.precision == "bf16" and gains_speed(variant):
            _log.warning("bf16 runs as FP32 here: native kernels, which it needs, are turned off")
    else:
        plan, variant = None, choose_gpu_variant(manifest, options.precision, chosen.kind)
    variants = (variant, *manifest.padding_variants(variant).values())
    assets = (manifest.tokenizer, *(asset for variant in variants for asset in variant.assets))
    check_assets(path, assets, verify_hash=options.verify, allow_links=options.allow_links)
    return open_variant(
        path, manifest, variant, chosen,
        plan=plan, max_batch_tokens=options.max_batch_tokens,
        verify=options.verify, allow_links=options.allow_links, mapped=options.mapped,
    )  # fmt: skip


def _load_cascade(path: Path, options: _Options) -> Model:
    """Load a cascade's two bundles with the same options."""
    from bert_runtime.cascade.loading import load_cascade

    def load_part(part: Path) -> Model:
        Manifest.read(part, verify=False)  # a cascade in a cascade is an error
        return _load(part, options)

    return load_cascade(path, load_part, verify=options.verify)


def _chosen_plan(path: Path, manifest: Manifest, options: _Options) -> Plan:
    """Return the plan for the CPU with the arguments of `load`."""
    measured = tuned_plan(path)
    plan = cpu_plan(
        manifest, measured, options.precision, options.threads, options.inter_threads, options.max_batch_tokens
    )
    return plan if options.kernels is None else replace(plan, kernels=options.kernels)


def open_variant(
    bundle: Path,
    manifest: Manifest,
    variant: Variant,
    device: Device,
    *,
    plan: Plan | None = None,
    max_batch_tokens: int | None = None,
    verify: bool = True,
    allow_links: bool = False,
    mapped: bool = True,
) -> Model:
    """Open a variant of a bundle on a device, which need not be the variant's target.

    Args:
        bundle: the bundle's directory.
        manifest: its manifest.
        variant: the variant. An unmasked one runs each sequence as a batch of its own.
        device: the device.
        plan: how to run on the CPU, by default `default_plan`.
        max_batch_tokens: see `load`.
        verify: see `load`; for sessions that are opened later.
        allow_links: see `load`; for sessions that are opened later.
        mapped: see `load`.

    Raises:
        BundleError: the files are missing or damaged.
        CudaUnavailableError: the device is not available.
    """
    tokenizer = bundle_tokenizer(bundle, manifest)
    check_again = partial(check_assets, bundle, verify_hash=verify, allow_links=allow_links)
    if variant.padding == UNMASKED:
        max_batch_tokens = 1  # each sequence alone, since the graph cannot read padding
    if device != CPU:
        return Model(
            manifest.task, tokenizer, _open_gpu(bundle, manifest, variant, device, check_again),
            max_batch_tokens=_GPU_BATCH_TOKENS if max_batch_tokens is None else max_batch_tokens,
            manifest=manifest, variant=variant,
        )  # fmt: skip
    plan = plan or default_plan(variant.precision)
    if max_batch_tokens is not None:
        plan = replace(plan, max_batch_tokens=max_batch_tokens)
    open_with_threads = partial(open_session, bundle, manifest, variant, kernels=plan.kernels, mapped=mapped)
    session, parallel = open_with_threads(plan.threads), None
    if plan.inter_threads > 1:

        def open_single_thread() -> Session:
            check_again(variant.assets)  # the same files that were opened before
            return open_with_threads(1)

        parallel = ParallelSessions(session, open_single_thread, plan.inter_threads)
    return Model(
        manifest.task, tokenizer, session, parallel,
        max_batch_tokens=plan.max_batch_tokens,
        whole_batch_tokens=0 if max_batch_tokens is not None else whole_batch_tokens(variant, plan),
        manifest=manifest, variant=variant,
    )  # fmt: skip


def _open_gpu(
    bundle: Path,
    manifest: Manifest,
    variant: Variant,
    device: Device,
    check_again: Callable[[Iterable[Asset]], None],
) -> Runner:
    """Open a session on a GPU, with a router if the variant has other padding modes.

    `check_again` checks the files of sessions that are opened later.
    """
    check_graph(bundle, variant)
    if device.kind == "tensorrt":
        return TensorrtSession(bundle, manifest, variant, device)

    def open_now(variant: Variant) -> CudaSession:
        shapes = None if variant.padding == MASKED else NO_BUCKETS
        return CudaSession(bundle / variant.model.file, manifest, device, shapes)

    def open_later(variant: Variant) -> CudaSession:
        check_again(variant.assets)
        check_graph(bundle, variant)
        return open_now(variant)

    others = manifest.padding_variants(variant) if variant.padding == MASKED else {}
    session = open_now(variant)
    if not others:
        return session
    return PaddingRouter(session, {padding: partial(open_later, other) for padding, other in others.items()})


def open_session(
    bundle: Path, manifest: Manifest, variant: Variant, threads: int, *, kernels: bool = True, mapped: bool = True
) -> Session:
    """Open a CPU session for a variant's graph; see `Session` for arguments and errors."""
    check_graph(bundle, variant)
    path, int8 = bundle / variant.model.file, variant.precision == "int8"
    session = Session(path, manifest.output.name, threads, int8=int8, kernels=kernels, mapped=mapped)
    check_output_shape(path, session.output_shapes[manifest.output.name], manifest.output)
    return session


def bundle_tokenizer(bundle: Path, manifest: Manifest) -> TextTokenizer:
    """Return a bundle's tokenizer, configured for its task; raise `BundleError` where it cannot be read or used."""
    path = bundle / manifest.tokenizer.file
    try:
        return TextTokenizer.from_file(path, manifest.max_tokens, manifest.pad_token_id, manifest.task.windows)
    except InputError as error:  # too few tokens, which nobody has given but the manifest
        raise BundleError(f"{bundle / MANIFEST_NAME}: {error}") from None
