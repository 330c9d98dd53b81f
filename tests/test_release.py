"""The version of a release is the same wherever it is stated."""

import tomllib
from pathlib import Path

import yaml
from click.testing import CliRunner

import bert_runtime
from bert_export.cli import main
from bert_runtime import Manifest

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def test_programs_and_bundles_state_the_version(classifier_bundle: Path) -> None:
    assert bert_runtime.__version__ == VERSION
    assert CliRunner().invoke(main, ["--version"]).stdout == f"bert-export, version {VERSION}\n"
    assert Manifest.read(classifier_bundle).versions["bert-export"] == VERSION


def test_citation_states_version_and_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (VERSION, "Apache-2.0")
    assert citation["authors"] == [{"name": "The bert-export developers"}]
