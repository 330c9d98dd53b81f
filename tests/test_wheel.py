"""The wheel: its contents, and its runtime without PyTorch."""

import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from bert_runtime.cpu import native_kernels

ROOT = Path(__file__).parents[1]

# Packages that `pip install 'bert-export[cpu]'` installs: the base dependencies, onnxruntime, and their dependencies.
INSTALLED = (
    "numpy", "numpy.libs", "tokenizers", "click", "rich", "pygments", "markdown_it", "mdurl",
    "onnxruntime", "flatbuffers", "google", "packaging",
)  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=280)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents and the packages of the `cpu` extra only."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for name in INSTALLED:
        source = Path(sysconfig.get_path("platlib")) / name
        if source.exists():
            (folder / name).symlink_to(source)
    return folder


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with `site` as the only source of packages."""
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, env={"PYTHONPATH": str(site)}, capture_output=True, text=True, timeout=120)


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    info = "bert_export-0.1.0.dist-info"
    assert {name.partition("/")[0] for name in names} == {
        "bert_export",
        "bert_runtime",
        "bert_models",
        "bert_serve",
        "bert_bench",
        info,
    }
    assert {"bert_export/reference_texts.txt", "bert_bench/data/support_intents/train.jsonl"} <= set(names)
    assert {f"{info}/licenses/LICENSE", f"{info}/entry_points.txt"} <= set(names)
    assert {"bert_bench/requirements-openvino.txt", "bert_bench/requirements-optimum.txt"} <= set(names)
    packages = ("bert_export", "bert_runtime", "bert_models", "bert_serve", "bert_bench")
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    static = ROOT / "runtime" / "bert_serve" / "page" / "static"
    page = {f"bert_serve/page/static/{path.relative_to(static)}" for path in static.rglob("*") if path.is_file()}
    assert "bert_serve/page/static/index.html" in page
    assert page <= set(names)
    assert not [name for name in names if name.endswith((".onnx", ".safetensors", ".pyc")) or "/tests/" in name]


def test_a_wheel_with_kernels_is_tagged_with_the_platform(wheel: Path) -> None:
    has_kernels = any(name.startswith("bert_runtime/lib/kernels-") for name in zipfile.ZipFile(wheel).namelist())
    built = [*Path(native_kernels.__file__).parents[1].joinpath("lib").glob("kernels-*.so")]
    assert has_kernels == bool(built)
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_") if has_kernels else "any"
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")


def test_kernels_that_cannot_be_loaded_are_logged(site: Path, classifier_bundle: Path, tmp_path: Path) -> None:
    """As with a wheel that was built for another C library."""
    if native_kernels.kernel_library() is None:
        pytest.skip("this installation has no native kernels for this processor")
    damaged = tmp_path / "site"
    shutil.copytree(site, damaged, symlinks=True)
    for library in (damaged / "bert_runtime" / "lib").iterdir():
        library.write_bytes(b"no library")
    code = f"import bert_runtime; print(bert_runtime.load({str(classifier_bundle)!r}, precision='int8')('hello').label)"
    finished = run(damaged, "-c", code)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() in ("greeting", "farewell", "question")
    assert "running without native kernels" in finished.stderr
    assert "reinstall bert-export" in finished.stderr


def test_base_dependencies_are_those_of_the_runtime(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_string(archive.read("bert_export-0.1.0.dist-info/METADATA").decode())
    required = metadata.get_all("Requires-Dist") or []
    base = {line.split(">")[0] for line in required if "extra ==" not in line}
    assert base == {"numpy", "tokenizers", "click", "rich"}
    assert set(metadata.get_all("Provides-Extra") or []) >= {"cpu", "gpu", "export", "train", "bench", "dev"}


def test_python_api_without_torch(site: Path, classifier_bundle: Path) -> None:
    code = (
        "import sys, json, bert_runtime;"
        f"result = bert_runtime.load({str(classifier_bundle)!r}, precision='fp32')('hello there');"
        "heavy = sorted({'torch', 'onnx', 'transformers', 'click', 'lightning'} & set(sys.modules));"
        "print(json.dumps([result.to_dict(), heavy]))"
    )
    finished = run(site, "-c", code)
    assert finished.returncode == 0, finished.stderr
    result, heavy = json.loads(finished.stdout)
    assert result["label"] in ("greeting", "farewell", "question")
    assert heavy == []


def test_command_line_without_torch(site: Path, classifier_bundle: Path) -> None:
    finished = run(site, "-m", "bert_export.cli", "predict", str(classifier_bundle), "hello there", "--json")
    assert finished.returncode == 0, finished.stderr
    assert set(json.loads(finished.stdout)) == {"label", "score"}
    assert run(site, "-m", "bert_export.cli", "verify", str(classifier_bundle)).returncode == 0
    assert run(site, "-m", "bert_export.cli", "inspect", str(classifier_bundle)).returncode == 0


def test_export_without_torch_names_the_extra(site: Path, classifier_checkpoint: Path, tmp_path: Path) -> None:
    finished = run(site, "-m", "bert_export.cli", "export", str(classifier_checkpoint), str(tmp_path / "bundle"))
    assert finished.returncode == 1
    assert "pip install 'bert-export[export]'" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_prediction_without_onnxruntime_names_the_extra(site: Path, classifier_bundle: Path) -> None:
    hidden = "import sys; sys.modules['onnxruntime'] = None; from bert_export.cli import main; main()"
    finished = run(site, "-c", hidden, "predict", str(classifier_bundle), "hello")
    assert finished.returncode == 1
    assert "pip install 'bert-export[cpu]'" in finished.stderr
    assert "Traceback" not in finished.stderr
