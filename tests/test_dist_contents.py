"""What `make dist` checks of the archives before a release."""

import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from bert_runtime.cpu import native_kernels

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def contents() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dist_contents", ROOT / ".ci" / "dist_contents.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("--sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def any_wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel for any platform, built from the sdist."""
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return build("--wheel", source, tmp_path_factory.mktemp("any"))


def build(kind: str, source: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", str(folder), str(source)]
    environment = {**os.environ, "BERT_EXPORT_KERNELS": "none"}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    (built,) = folder.iterdir()
    return built


def rebuilt(wheel: Path, folder: Path, *, leave_out: str = "", add: str = "", change: str = "") -> Path:
    """Copy a wheel into `folder` with a file left out, added or changed."""
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(copy, "w") as target:
        for name in source.namelist():
            if name != leave_out:
                target.writestr(name, source.read(name) + (b"#" if name == change else b""))
        if add:
            target.writestr(add, "")
    return copy


def test_wheel_holds_what_the_sdist_makes(contents: ModuleType, any_wheel: Path, sdist: Path) -> None:
    assert any_wheel.name.endswith("-py3-none-any.whl")
    assert contents.check_wheel(any_wheel, sdist) == []


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_release_wheel_needs_the_kernels_and_a_platform(
    machine: str, contents: ModuleType, any_wheel: Path, sdist: Path
) -> None:
    lacks, tag, name = contents.check_wheel(any_wheel, sdist, machine)
    assert lacks.endswith(f"lacks {', '.join(sorted(contents.LIBRARIES[machine]))}")
    assert tag.endswith("does not state Root-Is-Purelib: false")
    assert name.endswith(f"expected {machine} in the name")


def test_wheels_hold_the_libraries_that_the_runtime_looks_for(contents: ModuleType) -> None:
    packaged = {Path(library).name for libraries in contents.LIBRARIES.values() for library in libraries}
    assert packaged == set(native_kernels._LIBRARIES)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ({"add": "bert_runtime/lib/kernels-avx2.so"}, "holds bert_runtime/lib/kernels-avx2.so"),
        ({"add": "tests/conftest.py"}, "holds tests/conftest.py"),
        ({"leave_out": "bert_models/py.typed"}, "lacks bert_models/py.typed"),
        ({"leave_out": "bert_export-0.1.0.dist-info/licenses/LICENSE"}, "lacks bert_export-0.1.0.dist-info/licenses/"),
        ({"change": "bert_runtime/loading.py"}, "differs from bert_export-0.1.0.tar.gz in bert_runtime/loading.py"),
        ({"change": "bert_export-0.1.0.dist-info/METADATA"}, "in bert_export-0.1.0.dist-info/METADATA"),
        ({"leave_out": "bert_export-0.1.0.dist-info/entry_points.txt"}, "does not declare bert-bench = "),
    ],
)
def test_faults_of_a_wheel_are_named(
    fault: dict[str, str], problem: str, contents: ModuleType, any_wheel: Path, sdist: Path, tmp_path: Path
) -> None:
    problems = contents.check_wheel(rebuilt(any_wheel, tmp_path, **fault), sdist)
    assert any(problem in found for found in problems), problems


def test_sdist_holds_tracked_files_only(contents: ModuleType, sdist: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in ("pyproject.toml", "tests/test_new.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    lacks, holds = contents.check_sdist(sdist, tmp_path)
    assert lacks.endswith("lacks tests/test_new.py")
    assert "holds what git does not track:" in holds
    assert "runtime/native/operators.cc" in holds
