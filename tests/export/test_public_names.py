"""The public names of `bert_export`: found at once, imported on first use."""

import json
import subprocess
import sys

import pytest

import bert_export
from bert_export import export
from bert_export.exporter import export as same


def test_importing_the_package_imports_no_heavy_library() -> None:
    code = (
        "import bert_export, json, sys; "
        "heavy = [name for name in ('torch', 'onnx', 'onnx_ir', 'onnxruntime', 'numpy') if name in sys.modules]; "
        "print(json.dumps([heavy, dir(bert_export)]))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy, names = json.loads(printed.splitlines()[-1])
    assert heavy == []
    assert {"ExportError", "export"} <= set(names)


def test_export_is_the_function() -> None:
    assert export is same is bert_export.export
    assert callable(bert_export.export)
    assert set(bert_export.__all__) <= set(dir(bert_export))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'bert_export' has no attribute 'exports'"):
        bert_export.exports  # type: ignore[attr-defined] # noqa: B018
