"""The wheels of `make dist`, and a clone, installed with the index's releases for every Python that is here.

`make test-dist` runs this. It needs the index, so that other runs of the suite skip it. The interpreters are those of
`PYTHONS` (paths, separated as in PATH), of PATH and of pyenv.
"""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_runtime import load
from bert_runtime.cpu import native_kernels

VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
ROOT = Path(__file__).parents[1]
DIST = Path(os.environ.get("BERT_EXPORT_DIST", "unset"))
MISSING = "running without native kernels"

pytestmark = [
    pytest.mark.skipif("BERT_EXPORT_DIST" not in os.environ, reason="`make test-dist` sets BERT_EXPORT_DIST"),
    pytest.mark.timeout(600),
]


def interpreters() -> dict[str, str]:
    """Return the path of an interpreter for each version that is here."""
    candidates = os.environ.get("PYTHONS", "").split(os.pathsep)
    candidates += [shutil.which(f"python{version}") or "" for version in VERSIONS]
    candidates += [str(path) for path in sorted(Path.home().glob(".pyenv/versions/*/bin/python"))]
    found: dict[str, str] = {}
    for path in filter(os.path.exists, candidates):
        asked = [path, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"]
        version = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        if version in VERSIONS:
            found.setdefault(version, path)
    return dict(sorted(found.items()))


class Installation:
    """A virtual environment whose programs find no compiler."""

    def __init__(self, interpreter: str, folder: Path) -> None:
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
        self.binaries = folder / "bin"

    def run(self, program: str, *arguments: object, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CXX")}
        environment["PATH"] = str(self.binaries)
        command = [str(self.binaries / program), *map(str, arguments)]
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
        assert finished.returncode == exit_code, finished.stderr
        return finished

    def install(self, requirement: str, *options: str) -> None:
        self.run("python", "-m", "pip", "install", "--only-binary", ":all:", *options, requirement)


def wheel(pattern: str) -> str:
    """Return the requirement of the wheel in `dist` that matches, with the extra `cpu`."""
    (path,) = DIST.glob(pattern)
    return f"{path}[cpu]"


@pytest.fixture(scope="module", params=interpreters().items() if DIST.is_dir() else [], ids=lambda pair: pair[0])
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An environment with the extra `cpu` and the wheel with kernels."""
    folder = tmp_path_factory.mktemp("installation")
    installed = Installation(request.param[1], folder)
    installed.install(wheel(f"*manylinux*_{platform.machine()}.whl"))
    yield installed
    shutil.rmtree(folder)  # 300 MB


def answers_of(installation: Installation, bundle: Path) -> tuple[list[str], str]:
    """Return the labels from the Python API, which loads the bundle twice, and what was logged."""
    code = f"from bert_runtime import load; print([load({str(bundle)!r})('hello there').label for _ in range(2)])"
    finished = installation.run("python", "-W", "error", "-c", code)
    return json.loads(finished.stdout.replace("'", '"')), finished.stderr


def here(installation: Installation, bundle: Path) -> dict[str, object]:
    """Return what `bert-export inspect` says that `load` does on this machine."""
    state: dict[str, object] = json.loads(installation.run("bert-export", "inspect", bundle, "--json").stdout)["here"]
    return state


def check_answers(installation: Installation, bundle: Path) -> str:
    """Compare the answers with this process'; return what the Python API logged."""
    expected = load(bundle)("hello there").label
    predicted = installation.run("bert-export", "predict", bundle, "hello there", "--json")
    assert json.loads(predicted.stdout)["label"] == expected
    labels, logged = answers_of(installation, bundle)
    assert labels == [expected, expected]
    return logged


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="for Linux on x86-64")
def test_manylinux_wheel_runs_its_kernels(installation: Installation, classifier_bundle: Path) -> None:
    assert MISSING not in check_answers(installation, classifier_bundle)
    if native_kernels._best_library() is None:
        pytest.skip("there are no kernels for this processor")
    assert here(installation, classifier_bundle)["kernel_names"] != []
    assert "(not here)" not in installation.run("bert-export", "inspect", classifier_bundle).stdout


def test_any_wheel_runs_and_says_once_that_kernels_are_missing(
    installation: Installation, classifier_bundle: Path
) -> None:
    installation.install(wheel("*-any.whl"), "--force-reinstall", "--no-deps")
    is_missing = bool(native_kernels._libraries())
    assert check_answers(installation, classifier_bundle).count(MISSING) == is_missing
    assert here(installation, classifier_bundle)["kernel_names"] == []


def test_clone_installs_and_names_how_to_add_an_extra(
    installation: Installation, classifier_bundle: Path, tmp_path: Path
) -> None:
    """The command in the message is run as it stands; it installs from the clone again."""
    clone = tmp_path / "a clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    installation.install(f"{clone}[cpu]", "--force-reinstall", "--no-deps")
    error = installation.run("bert-export", "bench", classifier_bundle, exit_code=1).stderr
    hint = error.rpartition("install it with: ")[2].strip()
    assert hint == f"pip install '{clone}[bench]'"
    installation.run(*shlex.split(hint))
    installation.run("python", "-c", "import psutil, matplotlib")


@pytest.mark.parametrize(
    ("machine", "expected"), [("manylinux_2_28_x86_64", "manylinux_2_28_x86_64"),
                              ("manylinux_2_28_aarch64", "manylinux_2_28_aarch64"),
                              ("macosx_11_0_arm64", "any"), ("win_amd64", "any")],
)  # fmt: skip
def test_each_platform_gets_its_wheel(machine: str, expected: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-index", "--find-links", str(DIST), "--no-deps", "--dest",
               str(tmp_path), "--only-binary", ":all:", "--platform", machine, "bert-export"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.iterdir()
    assert wheel.name.endswith(f"-py3-none-{expected}.whl")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_dependencies_have_wheels(version: str, machine: str, tmp_path: Path) -> None:
    """Also where no interpreter of that version, or no such processor, is here."""
    tags = ("manylinux2014", "manylinux_2_17", "manylinux_2_27", "manylinux_2_28")
    platforms = [option for tag in tags for option in ("--platform", f"{tag}_{machine}")]
    abis = [option for abi in (f"cp{version.replace('.', '')}", "abi3", "none") for option in ("--abi", abi)]
    options = ("--dry-run", "--ignore-installed", "--only-binary", ":all:", "--target", str(tmp_path))
    command = [sys.executable, "-m", "pip", "install", *options, "--python-version", version, *platforms, *abis]
    finished = subprocess.run([*command, wheel("*-any.whl")], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "onnxruntime-" in finished.stdout
