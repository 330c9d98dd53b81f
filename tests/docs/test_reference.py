"""The reference is complete: what the code has, its pages name."""

import ast
import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache

import click
import pytest

from bert_export.cli import main
from bert_export.cli.serve import serve
from bert_models import FAMILIES
from bert_runtime import TASKS, Asset, BertError, Manifest, Plan, SelfTest, TensorSpec, Tuning, Variant
from bert_runtime.bundle.digest import DIGEST_KEY
from bert_runtime.bundle.schema import json_key
from bert_runtime.records.reader import FORMATS

from .pages import DOCS, ROOT

REFERENCE = DOCS / "reference"
PACKAGES = {
    "bert_runtime": "runtime/bert_runtime",
    "bert_export": "bert_export",
    "bert_models": "models/bert_models",
    "bert_bench": "bench/bert_bench",
    "bert_serve": "runtime/bert_serve",
}
ERROR_MODULES = (
    "bert_runtime.errors",
    "bert_models.errors",
    "bert_export.errors",
    "bert_bench.errors",
    "bert_serve.errors",
)

NOT_READ = {
    "HF_HUB_DISABLE_TELEMETRY": "set for the workers of benchmarks",
    "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "set for a process of an experiment",
    "CPUINFO": "a macro of a C file that is compiled",
    "BERT_BENCH_PLAN": "set for the load generator of an experiment",
    "OMP_NUM_THREADS": "set for servers that are compared",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "set for the cluster of an experiment",
    "BERT_SERVE": "the beginning of the variables of serve's options",
}
"""Names in upper case that are no variables which a user may set."""


@cache
def text_of(page: str) -> str:
    return (REFERENCE / page).read_text(encoding="utf-8")


def rows(page: str) -> set[str]:
    """Names in backticks in the first cells of a page's tables."""
    cells = re.findall(r"^\| (`[^|]*`)", text_of(page), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_on_the_package_page(package: str) -> None:
    shown = re.findall(rf"^::: {package}\.(\w+)$", text_of(f"python/{package}.md"), re.MULTILINE)
    assert sorted(shown) == sorted(importlib.import_module(package).__all__)


def test_every_command_is_on_the_page_of_the_command_line() -> None:
    added = set(main.list_commands(click.Context(main))) - main.commands.keys()
    shown = re.findall(r":prog_name: bert-export (\w+)", text_of("cli.md"))
    assert sorted(shown) == sorted(added), "mkdocs-click omits the commands of entry points: name each of them"


def environment_variables() -> Iterator[str]:
    """Names in files that read the environment, and those of huggingface_hub that any file mentions."""
    folders = (*PACKAGES.values(), "runtime/native")
    for path in sorted({path for folder in folders for path in (ROOT / folder).rglob("*.py")}):
        source = path.read_text(encoding="utf-8")
        yield from re.findall(r"\bHF_[A-Z_]+[A-Z]\b", source)
        if not re.search(r"\bos\.(environ|getenv)\b", source):
            continue
        yield from re.findall(r"environ(?:\.get\(|\[)\"(\w+)\"", source)
        nodes = [*ast.walk(ast.parse(source))]
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        yield from (text for text in texts - names if re.fullmatch(r"[A-Z]+(_[A-Z]+)+|RANK", text))


def test_every_environment_variable_has_an_entry() -> None:
    found = set(environment_variables())
    assert {"XDG_CACHE_HOME", "WORLD_SIZE", "MASTER_ADDR", "BERT_EXPORT_KERNELS", "HF_TOKEN", "CXX"} <= found
    shown = rows("environment-variables.md")
    options = {f"BERT_SERVE_{option.opts[0].lstrip('-').replace('-', '_').upper()}" for option in serve.params}
    missing, stale = found - NOT_READ.keys() - shown - options, shown - found - options - {"HF_HOME"}
    assert (missing, stale) == (set(), set())


def error_classes() -> set[type[BertError]]:
    modules = map(importlib.import_module, ERROR_MODULES)
    return {getattr(module, name) for module in modules for name in module.__all__}


def test_every_error_has_an_entry_and_its_place_in_the_tree() -> None:
    names = {error.__name__ for error in error_classes()}
    assert rows("errors.md") == names
    lines = re.findall(r"^((?:│   |    )*)(?:[├└]── )(\w+)$", text_of("errors.md"), re.MULTILINE)
    drawn, path = {"BertError": "Exception"}, {0: "BertError"}
    for indent, name in lines:
        depth = len(indent) // 4 + 1
        drawn[name], path[depth] = path[depth - 1], name
    assert drawn == {error.__name__: error.__bases__[0].__name__ for error in error_classes()}


def test_no_error_class_stands_outside_of_the_error_modules() -> None:
    pattern = re.compile(r"^class (\w+)\((\w*Error|Exception)\b", re.MULTILINE)
    for folder in PACKAGES.values():
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "errors.py":
                found = [name for name, _ in pattern.findall(path.read_text(encoding="utf-8")) if name != "NoMatch"]
                assert not found, path


def test_every_key_of_a_bundle_is_specified() -> None:
    page = text_of("bundle-format.md")
    keys = {
        json_key(item)
        for kind in (Manifest, Variant, Asset, TensorSpec, SelfTest, Plan, Tuning)
        for item in fields(kind)
    }
    golden = json.loads((ROOT / "tests/fixtures/bundle.v1.json").read_text(encoding="utf-8"))
    keys |= {*golden, "native_kernels", "model_card", "compression", DIGEST_KEY} - {"note_of_a_later_release"}
    assert not {key for key in keys - {"extra"} if f"`{key}`" not in page and f"`self_test.{key}`" not in page}
    for task in TASKS.values():
        row = re.search(rf"^\| `{task.name}` \| (.*) \|$", page, re.MULTILINE)
        assert row
        keys = {"targets" if item.name == "candidates" else item.name for item in fields(task)}  # of fill-mask
        assert set(re.findall(r"`(\w+)`", row[1])) == keys, task.name


def test_every_data_format_is_described() -> None:
    assert set(FORMATS) <= rows("data-formats.md")
    assert set(TASKS) <= rows("data-formats.md")


def test_every_task_has_its_results_and_options() -> None:
    page = text_of("families-and-tasks.md")
    assert all(f"`{family}`" in page for family in FAMILIES)
    assert re.findall(r"^### `([\w-]+)`$", page, re.MULTILINE) == [*TASKS]
    for word in ("Classification", "Regression", "Entities", "Answers", "Fillings", "ReplacedTokens", "Embedding"):
        assert f"`{word}`" in page
