"""The machine's resources: cores granted to this process, instruction sets, names for reports."""

import os
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["available_cores", "cpu_flags", "describe", "has_instruction_set", "installed_versions"]

_CGROUP = Path("/sys/fs/cgroup")
_PROCESS_CGROUP = Path("/proc/self/cgroup")
_CPUS = Path("/sys/devices/system/cpu")

_INSTRUCTION_SETS = {
    # u8×s8 dot products. Without one of these, AVX2 adds pairs of products in 16 bits, which saturates, and sessions
    # must use slower kernels. 64-bit Arm multiplies s8×s8 and has no such problem.
    "vnni": ("avx512_vnni", "avx_vnni", "amx_int8"),
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),  # the last is 64-bit Arm's
    "amx": ("amx_int8", "amx_bf16"),  # what tells processors of one model apart: virtual machines often have none
}
"""CPU flags that provide an instruction set; one of them is enough."""

_AT_HWCAP, _AT_HWCAP2 = 16, 26
_ARM64_FLAGS = {
    "asimd": (_AT_HWCAP, 1),
    "asimddp": (_AT_HWCAP, 20),
    "i8mm": (_AT_HWCAP2, 13),
    "bf16": (_AT_HWCAP2, 14),
}
"""The entry of the auxiliary vector and its bit that state a flag (Documentation/arch/arm64/elf_hwcaps.rst)."""

_CPUID_FLAGS = {
    "AVX2": "avx2",
    "FMA3": "fma",
    "AVX512F": "avx512f",
    "AVX512BW": "avx512bw",
    "AVX512DQ": "avx512dq",
    "AVX512VL": "avx512vl",
    "AVX512VNNI": "avx512_vnni",
    "AVX512BF16": "avx512_bf16",
}
"""NumPy's names of CPU features, and Linux's. AVX-VNNI and AMX have none, so that they are not seen there."""


def available_cores() -> int:
    """Return the number of physical cores this process may keep busy, at least 1.

    This is the smaller of two numbers: the distinct cores of the affinity mask, and the cgroup's CPU quota. Two
    hyper-threads of one core count once, since they share the units that matmuls keep busy. ONNX Runtime respects
    neither and sizes its thread pool from the host.
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_read(_CPUS / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus}
    quota = _cgroup_quota()
    return max(1, len(siblings) if quota is None else min(len(siblings), round(quota)))


def _cgroup_quota() -> float | None:
    """Return the CPUs that the cgroup and those around it grant (version 2 or 1), or `None` without a limit."""
    quotas = []
    for folder in _cgroups():
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not period:
            quota, period = (_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota not in ("", "max", "-1") and period:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _cgroups() -> Iterator[Path]:
    """Yield the folders of this process's cgroup and of those around it, the CPU controller's of version 1."""
    paths = {_CGROUP: "/", _CGROUP / "cpu": "/"}
    for line in _read(_PROCESS_CGROUP).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            paths[_CGROUP / "cpu" if controllers else _CGROUP] = path
    for root, path in paths.items():
        folder = root / path.lstrip("/")
        yield from (folder, *(parent for parent in folder.parents if parent.is_relative_to(root)))


def _read(path: Path) -> str:
    """Return the stripped contents of a small file, empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@lru_cache(maxsize=1)
def _cpuinfo() -> dict[str, str]:
    """Return the first processor's entries of /proc/cpuinfo; empty outside Linux."""
    first = _read(Path("/proc/cpuinfo")).partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def cpu_flags() -> frozenset[str]:
    """Return the CPU flags as Linux names them; empty where they cannot be read.

    Without /proc/cpuinfo (Windows, macOS) they are those of `_CPUID_FLAGS`.
    """
    if is_arm64():
        return _arm64_flags()
    return frozenset(_cpuinfo().get("flags", "").split()) or _cpuid_flags()


def _cpuid_flags() -> frozenset[str]:
    """Return the flags that NumPy, which dispatches on them, has read by the instruction cpuid."""
    try:
        found = import_module("numpy._core._multiarray_umath").__cpu_features__
    except (ImportError, AttributeError):  # NumPy 1 has it elsewhere
        return frozenset()
    return frozenset(flag for feature, flag in _CPUID_FLAGS.items() if found.get(feature))


def is_arm64() -> bool:
    """Return whether this process runs on 64-bit Arm: Linux, macOS and Windows have a name each."""
    return platform.machine().lower() in ("aarch64", "arm64")


@lru_cache(maxsize=1)
def _arm64_flags() -> frozenset[str]:
    """Return those flags that kernels ask for, from the auxiliary vector; empty outside Linux.

    Not from /proc/cpuinfo: an emulator shows the one of the machine below.
    """
    import ctypes

    try:
        auxiliary_value = ctypes.CDLL(None).getauxval
    except (OSError, TypeError, AttributeError):
        return frozenset()
    auxiliary_value.restype, auxiliary_value.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return frozenset(name for name, (kind, bit) in _ARM64_FLAGS.items() if auxiliary_value(kind) >> bit & 1)


def has_instruction_set(name: str | None) -> bool:
    """Return whether the processor has an instruction set: `vnni`, `bf16` or `amx`; true for `None`."""
    if name is None or (name == "vnni" and is_arm64()):
        return True
    return not cpu_flags().isdisjoint(_INSTRUCTION_SETS.get(name, ()))


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    from importlib.metadata import PackageNotFoundError, version  # takes 20 ms, which inference does not need

    found = {}
    for name in distributions:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def describe() -> dict[str, Any]:
    """Return a description of the machine for reports and manifests, as JSON values."""
    return {
        "cpu": _cpuinfo().get("model name") or platform.processor() or platform.machine(),
        # Clouds rename processors: "AMD EPYC" alone is five generations.
        "cpu_model": "/".join(_cpuinfo().get(key, "") for key in ("cpu family", "model", "stepping")).strip("/"),
        "cores": available_cores(),
        "instruction_sets": [name for name in _INSTRUCTION_SETS if has_instruction_set(name)],
        "system": f"{platform.system()} {platform.release()}",
        "python": ".".join(map(str, sys.version_info[:3])),
    }
