"""Granted cores (affinity, hyper-threads, cgroup quota), and instruction sets."""

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_runtime import machine


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a cgroup limit. CPUs 0 and 4, 1 and 5, … are hyper-threads of one core."""
    (tmp_path / "cgroup").mkdir()
    for cpu in range(8):
        folder = tmp_path / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_PROCESS_CGROUP", tmp_path / "absent")
    monkeypatch.setattr(machine, "_CPUS", tmp_path / "cpu")
    allow(monkeypatch, range(8))
    return tmp_path


def allow(monkeypatch: pytest.MonkeyPatch, cpus: range | set[int]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cpus), raising=False)


@pytest.mark.parametrize(
    ("cpus", "cores"), [(set(range(8)), 4), ({0, 4}, 1), ({0, 1}, 2), ({0, 4, 1}, 2), ({7}, 1), ({0, 1, 2, 7}, 4)]
)
@pytest.mark.usefixtures("system")
def test_hyper_threads_of_one_core_count_once(monkeypatch: pytest.MonkeyPatch, cpus: set[int], cores: int) -> None:
    allow(monkeypatch, cpus)
    assert machine.available_cores() == cores


def test_every_cpu_is_a_core_where_the_topology_is_unknown(monkeypatch: pytest.MonkeyPatch, system: Path) -> None:
    monkeypatch.setattr(machine, "_CPUS", system / "absent")
    assert machine.available_cores() == 8


@pytest.mark.usefixtures("system")
def test_cores_are_the_cpu_count_where_there_is_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for count, cores in ((2, 2), (8, 4), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert machine.available_cores() == cores


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 4),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("110000 100000", 1),
        ("20000 100000", 1),
        ("1600000 100000", 4),
        ("30000 10000", 3),
    ],
)
def test_cgroup_version_2(system: Path, quota: str, cores: int) -> None:
    (system / "cgroup/cpu.max").write_text(quota + "\n")
    assert machine.available_cores() == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 4), ("300000", 3), ("50000", 1), ("9900000", 4)])
def test_cgroup_version_1(system: Path, quota: str, cores: int) -> None:
    (system / "cgroup/cpu").mkdir()
    (system / "cgroup/cpu/cpu.cfs_quota_us").write_text(quota + "\n")
    (system / "cgroup/cpu/cpu.cfs_period_us").write_text("100000\n")
    assert machine.available_cores() == cores


@pytest.mark.parametrize(
    ("line", "folder", "files"),
    [
        ("0::/system.slice/app.service", "system.slice/app.service", {"cpu.max": "200000 100000"}),
        ("0::/system.slice/app.service", "system.slice", {"cpu.max": "200000 100000"}),
        ("4:cpu,cpuacct:/docker/1f", "cpu/docker/1f", {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}),
    ],
)
def test_quotas_of_the_groups_around_count(
    monkeypatch: pytest.MonkeyPatch, system: Path, line: str, folder: str, files: dict[str, str]
) -> None:
    """As systemd's `CPUQuota` and containers in the host's namespace have them."""
    (system / "groups").write_text(f"12:memory:/other\n{line}\n")
    monkeypatch.setattr(machine, "_PROCESS_CGROUP", system / "groups")
    (system / "cgroup" / folder).mkdir(parents=True)
    for name, content in files.items():
        (system / "cgroup" / folder / name).write_text(content + "\n")
    assert machine.available_cores() == 2


def test_a_quota_without_a_period_is_no_limit(system: Path) -> None:
    (system / "cgroup/cpu").mkdir()
    (system / "cgroup/cpu/cpu.cfs_quota_us").write_text("100000\n")
    assert machine.available_cores() == 4


def cpu(monkeypatch: pytest.MonkeyPatch, *flags: str, architecture: str = "x86_64") -> None:
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(machine.platform, "machine", lambda: architecture)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), []),
        (("avx2", "avx512f"), []),
        (("avx512_vnni",), ["vnni"]),
        (("avx_vnni",), ["vnni"]),
        (("amx_int8", "amx_bf16"), ["vnni", "bf16", "amx"]),
        (("avx512_bf16",), ["bf16"]),
        (("asimd", "bf16"), ["bf16"]),
    ],
)
def test_instruction_sets(monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], expected: list[str]) -> None:
    cpu(monkeypatch, *flags)
    assert [name for name in ("vnni", "bf16", "amx") if machine.has_instruction_set(name)] == expected


def test_no_instruction_set_is_always_available(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu(monkeypatch)
    assert machine.has_instruction_set(None)


@pytest.mark.parametrize("architecture", ["aarch64", "arm64", "ARM64"])  # Linux, macOS, Windows
def test_64_bit_arm_counts_as_vnni(monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    cpu(monkeypatch, architecture=architecture)
    assert machine.has_instruction_set("vnni")


class Libc:
    """A C library whose auxiliary vector has these entries."""

    def __init__(self, entries: dict[int, int]) -> None:
        def getauxval(kind: int) -> int:
            return entries.get(kind, 0)

        self.getauxval = getauxval


@pytest.mark.parametrize(
    ("libc", "expected"),
    [
        (Libc({16: 1 << 1 | 1 << 20, 26: 1 << 13 | 1 << 14}), {"asimd", "asimddp", "i8mm", "bf16"}),
        (Libc({16: 1 << 1 | 1 << 20, 26: 1 << 13}), {"asimd", "asimddp", "i8mm"}),
        (Libc({16: 1 << 1 | 1 << 20}), {"asimd", "asimddp"}),
        (Libc({16: 1 << 1}), {"asimd"}),
        (object(), set()),  # macOS has none
    ],
)
def test_flags_of_arm64_come_from_the_auxiliary_vector(
    libc: object, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr("ctypes.CDLL", lambda name: libc)
    machine._arm64_flags.cache_clear()
    assert machine.cpu_flags() == expected
    machine._arm64_flags.cache_clear()


def test_unknown_instruction_sets_are_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu(monkeypatch, "avx512_vnni", "avx10_2")
    assert not machine.has_instruction_set("avx10_2")


def test_cpu_flags_come_from_the_first_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = "processor\t: 0\nmodel name\t: Toy: 3 GHz\nflags\t\t: fpu avx512_vnni\n\nprocessor\t: 1\nflags\t: x\n"
    monkeypatch.setattr(machine, "_read", lambda path: cpuinfo if path == Path("/proc/cpuinfo") else "")
    machine._cpuinfo.cache_clear()
    try:
        assert machine.cpu_flags() == {"fpu", "avx512_vnni"}
        assert machine.describe()["cpu"] == "Toy: 3 GHz"
    finally:
        machine._cpuinfo.cache_clear()


@pytest.fixture
def no_cpuinfo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A system without /proc/cpuinfo, such as Windows."""
    monkeypatch.setattr(machine, "_read", lambda path: "")
    monkeypatch.setattr(machine.platform, "machine", lambda: "AMD64")
    machine._cpuinfo.cache_clear()
    yield
    machine._cpuinfo.cache_clear()


@pytest.mark.parametrize("vnni", [True, False])
@pytest.mark.usefixtures("no_cpuinfo")
def test_cpu_flags_without_cpuinfo_come_from_cpuid(vnni: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"AVX2": True, "FMA3": True, "AVX512VNNI": vnni, "SSE2": True, "NEON": False}
    monkeypatch.setattr(machine, "import_module", lambda name: SimpleNamespace(__cpu_features__=features))
    assert machine.cpu_flags() == {"avx2", "fma"} | ({"avx512_vnni"} if vnni else set())
    assert machine.has_instruction_set("vnni") == vnni
    assert machine.describe()["cpu"]


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not Path("/proc/cpuinfo").is_file(), reason="needs Linux on x86-64"
)
def test_cpuid_and_cpuinfo_agree() -> None:
    assert machine._cpuid_flags() == machine.cpu_flags() & {*machine._CPUID_FLAGS.values()}


@pytest.mark.parametrize("broken", [ImportError, AttributeError])
@pytest.mark.usefixtures("no_cpuinfo")
def test_cpu_flags_are_empty_where_nothing_states_them(
    broken: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise broken

    monkeypatch.setattr(machine, "import_module", fail)
    assert machine.cpu_flags() == frozenset()
    assert not machine.has_instruction_set("vnni")


@pytest.mark.usefixtures("system")
def test_description_has_cores_and_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu(monkeypatch, "avx_vnni")
    described = machine.describe()
    assert (described["cores"], described["instruction_sets"]) == (4, ["vnni"])
