"""The version of a release is the same wherever it is stated, and the install lines are those of a clone or a wheel."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import bert_runtime
from bert_export.cli import main
from bert_runtime import Manifest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_programs_and_bundles_state_the_version(classifier_bundle: Path) -> None:
    assert bert_runtime.__version__ == VERSION
    assert CliRunner().invoke(main, ["--version"]).stdout == f"bert-export, version {VERSION}\n"
    assert Manifest.read(classifier_bundle).versions["bert-export"] == VERSION


def test_citation_states_version_and_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (VERSION, "Apache-2.0")
    assert citation["authors"] == [{"name": "The bert-export developers"}]


def test_changelog_has_a_section_for_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert releases[0] == VERSION
    section = changelog.partition(f"## {VERSION}")[2]
    for heading in ("What works", "What was measured", "Known limits"):
        assert f"### {heading}" in section


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_install_lines_work_without_a_package_index_that_has_this_project(page: Path) -> None:
    lines = re.findall(r"pip install [^\n`]*", page.read_text(encoding="utf-8"))
    own = re.compile(r"""(['"]?)(\.|[\w/.-]*bert[-_]export[\w.-]*?)\[([\w,]+)\]\1""")
    for _, target, extras in (found for line in lines for found in own.findall(line)):
        assert target == "." or target.endswith(".whl"), f"expected a clone or a wheel, found {target}"
        assert VERSION in target or target == "."
        assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
