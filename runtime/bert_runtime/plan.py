"""How a bundle runs on this machine: as `bert-export tune` measured it here, or as usually is fastest."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_runtime.bundle.atomic_files import atomic_write, temp_path
from bert_runtime.bundle.manifest import MANIFEST_NAME, Manifest, sha256_file
from bert_runtime.bundle.schema import from_plain, to_json, to_plain
from bert_runtime.cpu.native_kernels import kernel_names
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
    "write_tuning",
]

_log = logging.getLogger("bert_runtime")

TUNING_NAME = "tuning.json"

_FORMAT_VERSION = 2

_BATCH_TOKENS = 1024

_CORE_BATCH_TOKENS = 256
"""Of a run that has one core: few enough for what that has of its own as a cache."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What runs, and on how much of the machine."""

    precision: str
    threads: int
    """Threads per operator of a run that is alone."""
    inter_threads: int = 1
    """Runs side by side, of one thread each, where there are enough batches or callers; 1 for none."""
    max_batch_tokens: int
    """Padded tokens of one run."""
    kernels: bool = True
    """Whether the kernels of `bert_runtime.cpu.native_kernels` run what they can of a graph."""

    def __post_init__(self) -> None:
        for name in ("threads", "inter_threads"):
            if not 1 <= (value := getattr(self, name)) <= MAX_THREADS:
                raise InputError(f"{name} must lie in 1 to {MAX_THREADS}, found {value}")
        if self.max_batch_tokens < 1:
            raise InputError(f"max_batch_tokens must be at least 1, found {self.max_batch_tokens}")

    def __str__(self) -> str:
        """For a person to read."""
        many = "one run after the other"
        if self.inter_threads > 1:
            many = f"{self.inter_threads} runs side by side"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        kernels = "" if self.kernels else ", without kernels of our own"
        return (
            f"{self.precision}, one input on {threads}, many inputs in {many}, {self.max_batch_tokens} tokens a run"
            f"{kernels}"
        )


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What was measured on one machine, and the plan that came of it."""

    machine: Mapping[str, Any]
    """See `this_machine`."""
    manifest_sha256: str
    """The bundle's manifest when it was measured; what was measured of another one does not count."""
    plan: Plan
    measured: Mapping[str, Any]
    """Median milliseconds of one input, and sequences per second of many, by what was tried."""


def this_machine() -> dict[str, Any]:
    """What a measurement depends on: processor, cores granted, instruction sets, release of ONNX Runtime, kernels."""
    described = describe()
    versions = installed_versions(("onnxruntime", "onnxruntime-gpu"))
    return {key: described[key] for key in ("cpu", "cpu_model", "cores", "instruction_sets")} | {
        "versions": versions,
        "kernels": list(kernel_names()),
    }


def default_plan(precision: str, threads: int | None = None, inter_threads: int | None = None) -> Plan:
    """What usually is fastest: all threads for one input, by default the cores granted, and many runs of one thread."""
    threads = available_cores() if threads is None else threads
    inter_threads = threads if inter_threads is None else inter_threads
    return Plan(
        precision=precision,
        threads=threads,
        inter_threads=inter_threads,
        max_batch_tokens=_BATCH_TOKENS if inter_threads == 1 < threads else _CORE_BATCH_TOKENS,
    )


def tuned_plan(bundle: Path) -> Plan | None:
    """What was measured on a machine like this one, and still holds for the bundle; `None` where nothing was.

    A file that cannot be read is warned of and left alone: the bundle runs without it.
    """
    try:
        tunings = read_tuning(bundle)
    except BundleError as error:
        _log.warning("%s; tune the bundle again, running as usual", error)
        return None
    if not tunings:
        return None
    here, sha256 = this_machine(), sha256_file(bundle / MANIFEST_NAME)
    return next((each.plan for each in tunings if (each.machine, each.manifest_sha256) == (here, sha256)), None)


def read_tuning(bundle: Path) -> list[Tuning]:
    """What was measured of a bundle, a machine each; raises `BundleError` for a file that is no such thing."""
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
        return [from_plain(Tuning, each, f"tunings[{number}]") for number, each in enumerate(tunings)]
    except (BundleError, InputError) as error:
        raise BundleError(f"{path}: {error}") from None


def check_writable(bundle: Path) -> None:
    """Raises `BundleError` where no `tuning.json` can be written into the bundle."""
    probe = temp_path(bundle / TUNING_NAME)
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BundleError(f"{bundle / TUNING_NAME}: cannot be written: {error}; tune a copy of the bundle") from None


def write_tuning(bundle: Path, plan: Plan, measured: Mapping[str, Any]) -> Tuning:
    """Writes down what was measured here, in the place of what was measured here before.

    Raises `BundleError` where the bundle cannot be written to.
    """
    Manifest.read(bundle)
    tuning = Tuning(
        machine=this_machine(), manifest_sha256=sha256_file(bundle / MANIFEST_NAME), plan=plan, measured=measured
    )
    try:
        others = [each for each in read_tuning(bundle) if each.machine != tuning.machine]
    except BundleError as error:
        _log.warning("%s; writing it anew", error)
        others = []
    path = bundle / TUNING_NAME
    try:
        with atomic_write(path) as stream:
            stream.write(to_json({"format_version": _FORMAT_VERSION, "tunings": to_plain([*others, tuning])}))
    except OSError as error:
        raise BundleError(f"{path}: cannot be written: {error}; tune a copy of the bundle") from None
    return tuning
