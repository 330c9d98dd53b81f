"""CONTRIBUTING.md: its worked examples name the files that they touch, and its commands exist."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

EXAMPLES = {
    "Add a family": "electra",
    "Add a task": "replaced.?token",
    "Add a fusion": "merge_qkv",
    "Add a kernel": "AddNormQuantize|AddLayerNorm",
    "Add a benchmark engine": "ctranslate2",
}
"""By heading: what every file of the worked example mentions."""


def files_of(heading: str) -> list[str]:
    """Return the paths that start the items of the list below a heading."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    items = [line.partition(":")[0] for line in section.splitlines() if line.startswith("- ")]
    return [path for item in items for path in re.findall(r"`([^`]+)`", item)]


@pytest.mark.parametrize("heading", EXAMPLES)
def test_example_lists_files_that_have_it(heading: str) -> None:
    paths = files_of(heading)
    assert len(paths) >= 3
    for path in paths:
        found = re.search(EXAMPLES[heading], path + (ROOT / path).read_text(encoding="utf-8"), re.IGNORECASE)
        assert found, f"{path} does not mention {EXAMPLES[heading]}"


def test_registries_are_among_the_files() -> None:
    for heading in ("Add a family", "Add a task", "Add a benchmark engine"):
        registries = {"models/bert_models/families/__init__.py", "runtime/bert_runtime/tasks/registry.py",
                      "bench/bert_bench/engines/registry.py"}  # fmt: skip
        assert registries & set(files_of(heading))


def test_every_target_of_make_is_explained_and_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE))
    named = set(re.findall(r"(?m)(?:`|^)make ([a-z-]+)", TEXT))
    assert named <= targets
    assert targets - named <= {"help", "clean", "docs-serve"}


def test_hooks_before_a_commit_are_commands_of_the_checks() -> None:
    """They neither download tools nor run others than `make lint` and `make types`."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(BIN)", ".venv/bin")
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repository["repo"] == "local"
    commands = {hook["entry"].partition(" --")[0] for hook in repository["hooks"]}
    assert len(commands) == 4
    for command in commands:
        assert f"\t{command}" in makefile
