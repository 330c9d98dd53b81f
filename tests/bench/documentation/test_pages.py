"""README.md and the pages of docs: generated text is that of the registries and of bench/results."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from bert_bench.documentation.__main__ import main

ROOT = Path(__file__).parents[3]


def test_generated_text_is_up_to_date() -> None:
    result = CliRunner().invoke(main, ["--check", "--root", str(ROOT)])
    assert result.exit_code == 0, result.output


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose README has one block."""
    (tmp_path / "bench").mkdir()
    shutil.copytree(ROOT / "bench" / "results" / "fine-tunes", tmp_path / "bench" / "results" / "fine-tunes")
    (tmp_path / "README.md").write_text("<!-- generated: fine-tuning -->\nold\n<!-- /generated -->\n", encoding="utf-8")
    return tmp_path


def test_check_names_the_files_that_would_change_and_writes_nothing(project: Path) -> None:
    readme = project / "README.md"
    before = readme.read_text(encoding="utf-8")
    result = CliRunner().invoke(main, ["--check", "--root", str(project)])
    assert result.exit_code == 1
    assert f"{readme}: would change" in result.output
    assert "run `python -m bert_bench.documentation`" in result.output
    assert readme.read_text(encoding="utf-8") == before


def test_blocks_of_docs_are_filled_too(project: Path) -> None:
    page = project / "docs" / "how-to" / "train.md"
    page.parent.mkdir(parents=True)
    page.write_text("# Train\n\n<!-- generated: fine-tuning -->\n<!-- /generated -->\n", encoding="utf-8")
    assert CliRunner().invoke(main, ["--root", str(project)]).exit_code == 0
    assert "| sst2 | `text-classification` |" in page.read_text(encoding="utf-8")
    assert CliRunner().invoke(main, ["--check", "--root", str(project)]).exit_code == 0


def test_a_broken_block_leaves_every_file_as_it_was(project: Path) -> None:
    readme = project / "README.md"
    before = readme.read_text(encoding="utf-8") + "<!-- generated: unknown -->\n<!-- /generated -->\n"
    readme.write_text(before, encoding="utf-8")
    result = CliRunner().invoke(main, ["--root", str(project)])
    assert result.exit_code == 1
    assert "README.md:" in result.output
    assert "found 'unknown'" in result.output
    assert readme.read_text(encoding="utf-8") == before


def test_another_folder_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--root", str(tmp_path)])
    assert result.exit_code == 1
    assert "README.md: not found; name the folder of the project's sources with --root" in result.output
