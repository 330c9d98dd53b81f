"""README.md and the pages of docs: generated text is that of the registries and of bench/results."""

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from bert_bench.documentation.__main__ import main

ROOT = Path(__file__).parents[3]
CATALOG = """
speed_table = ["peers-amx-int8"]
picture = { title = "Speed", subtitle = "texts/s", panels = [
    { result = "peers-amx-int8", case = "sst2", title = "SST-2" },
] }
[renamed]
"bert_bench.experiments.fine_tunes" = "bert_bench.experiments.fine_tuning"
[machines.xeon]
title = "A Xeon"
cpu_model = "6/207/2"
details = "Two cores."
[topics.quality]
title = "Quality"
details = "Metrics."
[results.peers-amx-int8]
page = "xeon"
commit = "abc"
[results.fine-tunes]
page = "quality"
commit = "def"
title = "Fine-tunes"
table = "fine-tuning"
superseded = "before the flood"
"""


@pytest.mark.skipif(not (ROOT / "bench" / "results").is_dir(), reason="a source distribution has no results")
def test_generated_text_is_up_to_date() -> None:
    result = CliRunner().invoke(main, ["--check", "--root", str(ROOT)])
    assert result.exit_code == 0, result.output


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two results whose README has one block."""
    results = tmp_path / "bench" / "results"
    for name in ("fine-tunes", "peers-amx-int8"):
        shutil.copytree(ROOT / "bench" / "results" / name, results / name)
    (results / "catalog.toml").write_text(CATALOG, encoding="utf-8")
    (tmp_path / "README.md").write_text("<!-- generated: fine-tuning -->\nold\n<!-- /generated -->\n", encoding="utf-8")
    return tmp_path


def test_check_names_the_files_that_would_change_and_writes_nothing(project: Path) -> None:
    readme = project / "README.md"
    before = readme.read_text(encoding="utf-8")
    result = CliRunner().invoke(main, ["--check", "--root", str(project)])
    assert result.exit_code == 1
    assert f"{readme}: out of date" in result.output
    assert "run `python -m bert_bench.documentation`" in result.output
    assert readme.read_text(encoding="utf-8") == before


def test_blocks_of_docs_are_filled_too(project: Path) -> None:
    page = project / "docs" / "how-to" / "train.md"
    page.parent.mkdir(parents=True)
    page.write_text("# Train\n\n<!-- generated: fine-tuning -->\n<!-- /generated -->\n", encoding="utf-8")
    assert CliRunner().invoke(main, ["--root", str(project)]).exit_code == 0
    assert "| sst2 | `text-classification` |" in " ".join(page.read_text(encoding="utf-8").split())
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


def test_results_have_pages_with_their_conditions(project: Path) -> None:
    assert CliRunner().invoke(main, ["--root", str(project)]).exit_code == 0
    pages = {path.name: path.read_text(encoding="utf-8") for path in (project / "docs" / "results").rglob("*.md")}
    assert pages.keys() == {"index.md", "xeon.md", "quality.md", "peers-amx-int8.md"}
    assert re.search(r"\[`peers-amx-int8`\]\(figures/peers-amx-int8.md\) \| +`bert-bench run` \|", pages["index.md"])
    machine = pages["xeon.md"]
    assert "## MiniLM-L6 fine-tuned on SST-2, INT8\n" in machine
    assert "**1.11×** (0.93–1.29)" in machine
    assert "2026-11-22, commit abc; Intel Xeon (Emerald Rapids), 2 threads." in machine
    assert "bert-bench run build/sst2/checkpoint" in pages["peers-amx-int8.md"]


def test_superseded_results_are_folded_away(project: Path) -> None:
    assert CliRunner().invoke(main, ["--root", str(project)]).exit_code == 0
    page = (project / "docs" / "results" / "quality.md").read_text(encoding="utf-8")
    current, _, superseded = page.partition("## Superseded")
    assert "Nothing has been measured here with the current code." in current
    assert "<details markdown>\n<summary>Fine-tunes, 2026-11-20: before the flood</summary>\n\n|" in superseded
    assert "| sst2 " in superseded


def test_commands_name_modules_as_they_are_today(project: Path) -> None:
    assert CliRunner().invoke(main, ["--root", str(project)]).exit_code == 0
    page = (project / "docs" / "results" / "quality.md").read_text(encoding="utf-8")
    assert "\npython -m bert_bench.experiments.fine_tuning --base" in page
    assert "fine_tunes --" not in page


def test_pictures_are_drawn_again_when_their_contents_change(project: Path) -> None:
    for _ in range(2):
        first = CliRunner().invoke(main, ["--root", str(project)])
    assert first.output == ""
    catalog = project / "bench" / "results" / "catalog.toml"
    catalog.write_text(CATALOG.replace("Speed", "Pace"), encoding="utf-8")
    names = CliRunner().invoke(main, ["--check", "--root", str(project)]).output.splitlines()[:-1]
    pictures = project / "docs" / "pictures"
    assert names == [f"{pictures / name}: out of date" for name in ("speed.svg", "speed-dark.svg")]


def test_figures_of_results_that_are_gone_are_removed(project: Path) -> None:
    assert CliRunner().invoke(main, ["--root", str(project)]).exit_code == 0
    old = project / "docs" / "results" / "figures" / "old.md"
    old.write_text("old", encoding="utf-8")
    assert f"{old}: out of date" in CliRunner().invoke(main, ["--check", "--root", str(project)]).output
    assert old.exists()
    assert CliRunner().invoke(main, ["--root", str(project)]).exit_code == 0
    assert not old.exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "[results.fine-tunes]",
            "[results.fine-runs]",
            "results.fine-runs: no such file .*results: fine-tunes/sst2.json is",
        ),
        ('cpu_model = "6/207/2"', 'cpu_model = "25/1/1"', "measured on a CPU 6/207/2, which is not that of xeon"),
        ('page = "quality"', 'page = "xeon"', "expected page to be one of quality, found 'xeon'"),
        ("superseded", "superceded", "results.fine-tunes.superceded: unknown key"),
        ('table = "fine-tuning"', "", "results.fine-tunes: expected a title and a table"),
        ('table = "fine-tuning"', 'table = "fine"', "expected a generated block named one of"),
        ('case = "sst2"', 'case = "sst3"', r"expected a case of peers-amx-int8 \(text14, .*found 'sst3'"),
        ('speed_table = ["', 'speed_table = ["x', "unknown result xpeers-amx-int8"),
        ("title = ", "title ", "catalog.toml: Expected '='"),
        ('details = "Metrics."', "", "catalog.topics.quality: missing 'details'|topics.quality: missing"),
    ],
)
def test_a_catalog_that_does_not_fit_is_an_error(project: Path, old: str, new: str, message: str) -> None:
    (project / "bench" / "results" / "catalog.toml").write_text(CATALOG.replace(old, new), encoding="utf-8")
    result = CliRunner().invoke(main, ["--root", str(project)])
    assert result.exit_code == 1
    assert re.search(message, result.output)
    assert not (project / "docs").exists()


def test_another_folder_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--root", str(tmp_path)])
    assert result.exit_code == 1
    assert "README.md: not found; name the folder of the project's sources with --root" in result.output
