"""Imports of the runtime, measured in a fresh interpreter: light packages only."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HEAVY = (
    "torch",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "onnx_ir",
    "transformers",
    "click",
    "lightning",
    "safetensors",
    "huggingface_hub",
    "rich",
)

REPORT = """
import json, sys, time
start = time.perf_counter()
{code}
seconds = time.perf_counter() - start
print(json.dumps({{"seconds": seconds, "modules": sorted({{name.partition(".")[0] for name in sys.modules}})}}))
"""


def run_fresh(code: str) -> tuple[float, set[str]]:
    """Run `code` in a new interpreter; return its seconds and the top-level modules that are loaded afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT.format(code=code)], capture_output=True, text=True, timeout=60, check=True
    )
    report = json.loads(done.stdout)
    return report["seconds"], set(report["modules"])


def test_importing_the_runtime_loads_only_numpy_and_tokenizers(
    record_property: Callable[[str, object], None],
) -> None:
    seconds, modules = run_fresh("import bert_runtime")
    record_property("import_seconds", round(seconds, 3))
    assert {"bert_runtime", "numpy", "tokenizers"} <= modules
    assert modules.isdisjoint({*HEAVY, "bert_export", "bert_models", "bert_bench"})


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0")])
def test_onnxruntime_sends_no_reports_unless_the_user_lets_it(given: str | None, expected: str) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    variables |= {} if given is None else {"ORT_DISABLE_TELEMETRY": given}
    code = "import os, bert_runtime; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_every_module_of_the_runtime_loads_no_heavy_package() -> None:
    code = """
import importlib, pkgutil, bert_runtime
for module in pkgutil.walk_packages(bert_runtime.__path__, "bert_runtime."):
    importlib.import_module(module.name)
"""
    _, modules = run_fresh(code)
    assert modules.isdisjoint({*HEAVY, "bert_export", "bert_models", "bert_bench"})


def test_inference_loads_onnxruntime_and_nothing_heavier(classifier_bundle: Path) -> None:
    _, modules = run_fresh(f"import bert_runtime; bert_runtime.load({str(classifier_bundle)!r})('hello')")
    assert "onnxruntime" in modules
    assert modules.isdisjoint(set(HEAVY) - {"onnxruntime"})


def test_the_command_line_starts_without_heavy_packages() -> None:
    _, modules = run_fresh("from bert_export.cli import main")
    assert "click" in modules
    assert modules.isdisjoint(set(HEAVY) - {"click"})


@pytest.mark.parametrize("command", ["predict", "evaluate", "inspect", "verify", "report"])
def test_runtime_commands_do_not_load_torch(classifier_bundle: Path, tmp_path: Path, command: str) -> None:
    data = tmp_path / "data.csv"
    data.write_text("text,label\nhello,question\n")
    report = ["--evaluate", str(data), "--rounds", "1", "-o", str(tmp_path / "report.html")]
    rest = {"predict": ["hello"], "evaluate": [str(data)], "report": report}.get(command, [])
    code = f"""
import contextlib, io
from bert_export.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    main({[command, str(classifier_bundle), *rest]!r}, standalone_mode=False)
"""
    _, modules = run_fresh(code)
    assert modules.isdisjoint(set(HEAVY) - {"click", "onnxruntime"})


def test_every_public_name_can_be_imported() -> None:
    import bert_runtime

    for name in bert_runtime.__all__:
        assert getattr(bert_runtime, name) is not None
