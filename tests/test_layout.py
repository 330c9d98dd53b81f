"""The architecture's rules, checked against the code."""

import ast
import re
from pathlib import Path

import pytest

from bert_export.targets import PRECISIONS_BY_TARGET
from bert_models.families import FAMILIES
from bert_models.heads import HEADS
from bert_models.training.objectives import OBJECTIVES
from bert_runtime.tasks import TASKS

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "bert_runtime": ROOT / "runtime/bert_runtime",
    "bert_serve": ROOT / "runtime/bert_serve",
    "bert_models": ROOT / "models/bert_models",
    "bert_export": ROOT / "bert_export",
    "bert_bench": ROOT / "bench/bert_bench",
}
"""From the lightest to the heaviest; each may import those before it."""


def imports(path: Path) -> set[str]:
    """Return the top-level names of the modules that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_to_lighter_packages(package: str) -> None:
    names = list(PACKAGES)
    heavier = set(names[names.index(package) + 1 :])
    for path in PACKAGES[package].rglob("*.py"):
        found = imports(path)
        assert not found & heavier, f"{path.relative_to(ROOT)} imports {sorted(found & heavier)}"


def test_the_runtime_imports_only_base_dependencies() -> None:
    # The last four in functions: PyTorch only where a caller of the drop-in classes, or MTEB, asks for tensors.
    allowed = {"numpy", "tokenizers", "bert_runtime", "onnxruntime", "huggingface_hub", "torch", "mteb"}
    for path in PACKAGES["bert_runtime"].rglob("*.py"):
        third_party = {name for name in imports(path) if name not in sys_modules()}
        assert third_party <= allowed, path


def sys_modules() -> frozenset[str]:
    import sys

    return sys.stdlib_module_names


def test_folders_are_not_packages() -> None:
    assert not [folder for folder in ("runtime", "models", "bench") if (ROOT / folder / "__init__.py").exists()]


def test_every_task_has_a_head_and_an_objective() -> None:
    assert HEADS.keys() == TASKS.keys()
    assert OBJECTIVES.keys() == {name for name, task in TASKS.items() if task.has_labels}
    for family in FAMILIES.values():
        assert family.head_weights.keys() == family.architectures.keys()
        assert {"text-classification", "sentence-embedding"} <= family.head_weights.keys() <= TASKS.keys()


def test_readme_names_every_family_task_and_precision() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in (*FAMILIES, *TASKS):
        assert f"`{name}`" in readme, name
    for target, precisions in PRECISIONS_BY_TARGET.items():
        names = ", ".join(f"`{precision}`" for precision in precisions)
        assert re.search(rf"`{target}`[^(;]*\({names}\): ", readme), target


def test_source_files_have_at_most_300_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in PACKAGES.values()
        for path in folder.rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 300
    }
    assert not long
