"""Execution plans: how a bundle runs on this machine, as `bert-export tune` measured it or by default."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from bert_runtime.batching.batch_runner import check_max_batch_tokens
from bert_runtime.bundle.atomic_files import atomic_write, temp_path
from bert_runtime.bundle.entries import Variant
from bert_runtime.bundle.manifest import MANIFEST_NAME, Manifest, sha256_file
from bert_runtime.bundle.schema import from_plain, to_json, to_plain
from bert_runtime.cpu.native_kernels import kernel_names, native_kernels_record
from bert_runtime.cpu.session import MAX_THREADS
from bert_runtime.errors import BundleError, InputError
from bert_runtime.machine import available_cores, describe, installed_versions

__all__ = [
    "TUNING_NAME",
    "Plan",
    "Tuning",
    "check_writable",
    "default_plan",
    "read_tuning",
    "this_machine",
    "tuned_plan",
    "whole_batch_tokens",
    "write_tuning",
]

_log = logging.getLogger("bert_runtime")

TUNING_NAME = "tuning.json"
"""File of a bundle that holds the measurements of `bert-export tune`."""

_FORMAT_VERSION = 2

_BATCH_TOKENS = 1024
"""Padded tokens per batch that runs on several threads. A default; `bert-export tune` measures 128 to 2048. Also the
tokens of inputs that are one batch, see `whole_batch_tokens`."""

_CORE_BATCH_TOKENS = 256
"""Padded tokens per single-core batch: activations fit in that core's L2 cache. A default, as above."""

_WHOLE_BATCH_THREADS = 2
"""Threads for which one batch of packed rows on all of them was measured against batches on one each, and is faster."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a bundle runs on the CPU.

    Raises:
        InputError: a number is out of range.
    """

    precision: str
    """`fp32`, `int8` or `bf16`: the variant that runs."""
    threads: int
    """Threads per operator of a batch that runs alone."""
    inter_threads: int = 1
    """Batches run in parallel, one thread each, like CTranslate2's `inter_threads` and OpenVINO's `num_streams`.

    1 runs one batch after another, on all threads.
    """
    max_batch_tokens: int
    """Padded tokens per batch."""
    kernels: bool = True
    """Whether native kernels run, see `bert_runtime.cpu.native_kernels`."""

    def __post_init__(self) -> None:
        for name in ("threads", "inter_threads"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or not 1 <= int(value) <= MAX_THREADS:
                raise InputError(f"{name} must be a whole number in 1 to {MAX_THREADS}, found {value!r:.50}")
        check_max_batch_tokens(self.max_batch_tokens)

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        batches = "one batch at a time"
        if self.inter_threads > 1:
            batches = f"{self.inter_threads} batches in parallel"
        kernels = "" if self.kernels else ", without native kernels"
        batches += f" of {self.max_batch_tokens} tokens"
        return f"{self.precision}, one input on {threads}, many inputs as {batches}{kernels}"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The measurements of one machine, and the plan that they chose."""

    machine: Mapping[str, Any]
    """See `this_machine`."""
    manifest_sha256: str
    """SHA-256 of the bundle's manifest when it was measured; the measurement is void for any other manifest."""
    plan: Plan
    measured: Mapping[str, Any]
    """Median milliseconds of one input, and sequences per second of many, by configuration."""


def this_machine() -> dict[str, Any]:
    """Return what a measurement depends on: CPU, granted cores, instruction sets, ONNX Runtime's version, kernels."""
    described = describe()
    versions = installed_versions(("onnxruntime", "onnxruntime-gpu"))
    return {key: described[key] for key in ("cpu", "cpu_model", "cores", "instruction_sets")} | {
        "versions": versions,
        "kernels": native_kernels_record(),
    }


def default_plan(precision: str, threads: int | None = None, inter_threads: int | None = None) -> Plan:
    """Return the plan that is usually fastest: one input on all threads, many inputs on one thread per batch.

    Args:
        precision: the variant.
        threads: threads per operator, by default all granted cores.
        inter_threads: batches in parallel, by default as many as threads.
    """
    threads = available_cores() if threads is None else threads
    inter_threads = threads if inter_threads is None else inter_threads
    return Plan(
        precision=precision,
        threads=threads,
        inter_threads=inter_threads,
        max_batch_tokens=_BATCH_TOKENS if inter_threads == 1 < threads else _CORE_BATCH_TOKENS,
    )


def whole_batch_tokens(variant: Variant, plan: Plan) -> int:
    """Return how many tokens of several inputs, or windows of one, are one batch on all threads, 0 for none.

    Packed rows divide evenly among two threads, and batches of so few tokens on one thread each do not.
    """
    packs_rows = variant.fusions.get("packed_rows", {}).get("found", 0) > 0 and plan.kernels and bool(kernel_names())
    is_default = (
        plan.threads == plan.inter_threads == _WHOLE_BATCH_THREADS and plan.max_batch_tokens == _CORE_BATCH_TOKENS
    )
    return _BATCH_TOKENS if packs_rows and is_default else 0


def tuned_plan(bundle: Path) -> Plan | None:
    """Return the plan that was measured for this bundle on a machine like this one, or `None`.

    A tuning file that cannot be read, or whose plan this machine or bundle cannot follow, is logged and ignored.
    """
    try:
        tunings = read_tuning(bundle)
        if not tunings:
            return None
        key = (this_machine(), sha256_file(bundle / MANIFEST_NAME))
        plan = next((tuning.plan for tuning in tunings if (tuning.machine, tuning.manifest_sha256) == key), None)
        if plan is not None:
            _check_feasible(plan, bundle)
    except BundleError as error:
        _log.warning("%s; using the default plan, tune the bundle again", error)
        return None
    return plan


def _check_feasible(plan: Plan, bundle: Path) -> None:
    """Raise `BundleError` for a plan that `bert-export tune` cannot have measured on this machine."""
    cores = available_cores()
    for name in ("threads", "inter_threads"):
        if (value := getattr(plan, name)) > cores:
            raise BundleError(f"{bundle / TUNING_NAME}: expected {name} of at most {cores}, the cores, found {value}")
    try:
        Manifest.read(bundle, verify=False).variant(plan.precision)
    except BundleError as error:
        raise BundleError(f"{bundle / TUNING_NAME}: {error}") from None


def read_tuning(bundle: Path) -> list[Tuning]:
    """Read a bundle's measurements, one per machine; empty where there are none.

    Raises:
        BundleError: `tuning.json` cannot be read, or is not a tuning file.
    """
    path = bundle / TUNING_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path}: cannot be read: {error}") from None
    if not isinstance(values, dict) or values.get("format_version") != _FORMAT_VERSION:
        raise BundleError(f"{path}: expected an object of format_version {_FORMAT_VERSION}")
    tunings = values.get("tunings")
    if not isinstance(tunings, list):
        raise BundleError(f"{path}: tunings: expected a list, found {tunings!r:.80}")
    try:
        return [from_plain(Tuning, tuning, f"tunings[{index}]") for index, tuning in enumerate(tunings)]
    except (BundleError, InputError) as error:
        raise BundleError(f"{path}: {error}") from None


def check_writable(bundle: Path) -> None:
    """Raise `BundleError` where `tuning.json` cannot be written into the bundle."""
    probe = temp_path(bundle / TUNING_NAME)
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BundleError(f"{bundle / TUNING_NAME}: cannot be written: {error}; tune a copy of the bundle") from None


def write_tuning(bundle: Path, plan: Plan, measured: Mapping[str, Any]) -> Tuning:
    """Write this machine's measurements into the bundle, in place of earlier ones of the same machine.

    Raises:
        BundleError: the directory is not a bundle, or cannot be written to.
    """
    Manifest.read(bundle)
    tuning = Tuning(
        machine=this_machine(), manifest_sha256=sha256_file(bundle / MANIFEST_NAME), plan=plan, measured=measured
    )
    try:
        others = [other for other in read_tuning(bundle) if other.machine != tuning.machine]
    except BundleError as error:
        _log.warning("%s; replacing it", error)
        others = []
    path = bundle / TUNING_NAME
    try:
        with atomic_write(path) as stream:
            stream.write(to_json({"format_version": _FORMAT_VERSION, "tunings": to_plain([*others, tuning])}))
    except OSError as error:
        raise BundleError(f"{path}: cannot be written: {error}; tune a copy of the bundle") from None
    return tuning
