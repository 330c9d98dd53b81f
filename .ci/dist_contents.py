"""Compare what an sdist and its wheels hold with what they have to hold."""

import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

__all__ = ["check_sdist", "check_wheel"]

PACKAGES = {
    "bert_export": "bert_export",
    "bert_runtime": "runtime/bert_runtime",
    "bert_serve": "runtime/bert_serve",
    "bert_models": "models/bert_models",
    "bert_bench": "bench/bert_bench",
}
"""Folder of each package in the sdist."""
LIBRARIES = {
    machine: {f"bert_runtime/lib/kernels-{name}.so" for name in names}
    for machine, names in {
        "x86_64": ("amx", "avx2", "avx512", "avx512bf16", "avxvnni"),
        "aarch64": ("neon", "dotprod", "i8mm", "i8mmbf16"),
    }.items()
}
"""The kernel libraries of a wheel, by processor family."""
ENTRY_POINTS = ("bert-export = bert_export.__main__:main", "bert-bench = bert_bench.cli:main")

_PROJECT_FILES = {
    "pyproject.toml",
    "mkdocs.yml",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CITATION.cff",
    "LICENSE",
}
_REQUIREMENTS = "bench/requirements-"
_FOLDERS = (*(f"{folder}/" for folder in PACKAGES.values()), "runtime/native/", "tests/", "docs/")


def check_sdist(sdist: Path, root: Path) -> list[str]:
    """Return how an sdist differs from the files that git tracks in `root`."""
    command = ["git", "-C", str(root), "ls-files", "-z"]
    tracked = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0"))
    needed = {name for name in tracked if name in _PROJECT_FILES or name.startswith((*_FOLDERS, _REQUIREMENTS))}
    found = _read_sdist(sdist).keys()
    return [
        *_problems(sdist, "lacks", needed - found),
        *_problems(sdist, "holds what git does not track:", found - tracked - {"PKG-INFO"}),
    ]


def check_wheel(wheel: Path, sdist: Path, machine: str | None = None) -> list[str]:
    """Return how a wheel differs from what its sdist makes; the metadata have to be equal, too.

    Args:
        wheel: the wheel.
        sdist: the sdist that it was built from.
        machine: the processor family whose native kernels the wheel holds; if `None`, it is for every platform.
    """
    info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    found, copied = _read_wheel(wheel), _copied_files(_read_sdist(sdist), info)
    differing = {name for name in found.keys() & copied.keys() if found[name] != copied[name]}
    needed = copied.keys() | {f"{info}/{name}" for name in ("RECORD", "WHEEL", "entry_points.txt")}
    needed |= {f"{package}/py.typed" for package in PACKAGES}
    needed |= LIBRARIES[machine] if machine else set()
    return [
        *_problems(wheel, "lacks", needed - found.keys()),
        *_problems(wheel, "holds", found.keys() - needed),
        *_problems(wheel, f"differs from {sdist.name} in", differing),
        *_entry_point_problems(wheel, found.get(f"{info}/entry_points.txt", b"").decode()),
        *_tag_problems(wheel, found.get(f"{info}/WHEEL", b"").decode(), machine),
    ]


def _copied_files(sdist_files: Mapping[str, bytes], info: str) -> dict[str, bytes]:
    """Return the files that a wheel takes from the sdist unchanged, by their path in the wheel."""
    copied = {f"{info}/METADATA": sdist_files["PKG-INFO"], f"{info}/licenses/LICENSE": sdist_files["LICENSE"]}
    moved = {f"{folder}/": f"{package}/" for package, folder in PACKAGES.items()}
    moved[_REQUIREMENTS] = _REQUIREMENTS.replace("bench/", "bert_bench/")
    for name, content in sdist_files.items():
        copied |= {new + name.removeprefix(old): content for old, new in moved.items() if name.startswith(old)}
    return copied


def _entry_point_problems(wheel: Path, entry_points: str) -> Iterator[str]:
    missing = set(ENTRY_POINTS) - set(entry_points.splitlines())
    yield from _problems(wheel, "does not declare", missing)


def _tag_problems(wheel: Path, description: str, machine: str | None) -> Iterator[str]:
    """Compare the tag of the file name with that of the wheel's description, and with what the wheel is."""
    expected = {f"Root-Is-Purelib: {str(machine is None).lower()}", f"Tag: {'-'.join(wheel.stem.split('-')[2:])}"}
    yield from _problems(wheel, "does not state", expected - set(description.splitlines()))
    if not wheel.stem.endswith(f"_{machine}" if machine else "-py3-none-any"):
        yield f"{wheel.name}: expected {machine or 'every platform'} in the name"


def _problems(archive: Path, verb: str, names: Iterable[str]) -> Iterator[str]:
    """Describe a difference if there is one."""
    if found := sorted(names):
        yield f"{archive.name} {verb} {', '.join(found)}"


def _read_sdist(path: Path) -> dict[str, bytes]:
    """Return the files of an sdist, by their path below its folder."""
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: stream.read() for name, stream in files.items() if stream}


def _read_wheel(path: Path) -> dict[str, bytes]:
    """Return the files of a wheel, by path."""
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}
