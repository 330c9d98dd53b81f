"""`bert-export report`: the page and its data, and what stops it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import Run


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    path = tmp_path / "dev.csv"
    path.write_text("sentence,label\nhello,greeting\nbye,farewell\nwhere is my card?,question\n", encoding="utf-8")
    return path


def test_writes_a_page(run: Run, classifier_bundle: Path, tmp_path: Path, labelled: Path) -> None:
    output = tmp_path / "report.html"
    result = run(
        "report", classifier_bundle, "--evaluate", labelled, "--columns", "text=sentence", "--rounds", 1, "-o", output
    )
    assert (result.exit_code, result.stdout) == (0, f"wrote {output}\n")
    for stage in ("verifying the bundle", "evaluating int8 on 3 examples of dev.csv", "timing fp32, int8 at 8, 16, 32"):
        assert stage in result.stderr
    page = output.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "where is my card?" in page or "decide alike" in page
    assert sorted(tmp_path.iterdir()) == sorted([labelled, output])


def test_json_has_the_data_of_the_page(run: Run, classifier_bundle: Path, tmp_path: Path, labelled: Path) -> None:
    output = tmp_path / "report.html"
    arguments = ["report", classifier_bundle, "--evaluate", labelled, "--columns", "text=sentence", "--rounds", 1]
    result = run(*arguments, "--json", "-o", output)
    data = json.loads(result.stdout)
    assert data["evaluation"]["examples"] == 3
    page = output.read_text(encoding="utf-8")
    for variant in data["evaluation"]["variants"]:
        assert f"<td>{variant['metrics']['accuracy']:.4f}</td>" in page
    assert all(f"<td>{value:.3g}</td>" in page for value in data["latency"]["medians_ms"]["fp32"] if value < 100)
    assert json.loads(run(*arguments, "--json").stdout)["evaluation"] == data["evaluation"]


def test_needs_an_output(run: Run, classifier_bundle: Path) -> None:
    result = run("report", classifier_bundle)
    assert result.exit_code == 2
    assert "give -o FILE for the page, or --json for its data" in result.stderr


def test_an_output_that_exists_is_kept_unless_forced(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    output.write_text("mine")
    result = run("report", classifier_bundle, "-o", output, "--rounds", 1)
    assert (result.exit_code, result.stderr) == (
        1,
        f"Error: {output} exists; replace it with --force, or name another file\n",
    )
    assert output.read_text() == "mine"
    assert run("report", classifier_bundle, "-o", output, "--rounds", 1, "--force").exit_code == 0
    assert output.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (".", "expected a file to write, found a folder; name a file in it"),
        ("none/report.html", "expected a folder {folder}/none to write into, found none; make it first"),
    ],
)
def test_outputs_that_cannot_be_written(
    run: Run, classifier_bundle: Path, tmp_path: Path, output: str, message: str
) -> None:
    for options in ([], ["--force"]):
        result = run("report", classifier_bundle, "-o", tmp_path / output, *options)
        assert result.exit_code == 1
        assert result.stderr == f"Error: {tmp_path / output}: {message.format(folder=tmp_path)}\n"
    assert not list(tmp_path.iterdir())


def test_no_such_bundle(run: Run, tmp_path: Path) -> None:
    result = run("report", tmp_path / "nothing", "-o", tmp_path / "report.html")
    assert result.exit_code == 1
    assert "nothing: expected a bundle (a directory with bundle.json), found no such directory" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dev.conll", "my\tO\ncard\tB-item\n", ":1: expected a field 'text', found only 'tokens', 'tags'"),
        ("dev.csv", "text,label\nhello,pink\n", ":2: label 'pink' is not one of the model's 3 labels"),
        ("dev.csv", "text,label\n", ": expected at least one row, found none"),
        ("dev.xml", "<a/>", ": expected a file that ends in .jsonl"),
    ],
)
def test_files_of_another_kind_write_nothing(
    run: Run, classifier_bundle: Path, tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    result = run("report", classifier_bundle, "--evaluate", path, "-o", tmp_path / "report.html")
    assert result.exit_code == 1
    assert f"Error: {path}{message}" in result.stderr
    assert list(tmp_path.iterdir()) == [path]


def test_a_page_that_cannot_be_drawn_leaves_the_old_one(
    run: Run, classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "report.html"
    output.write_text("old")

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    result = run("report", classifier_bundle, "-o", output, "--force", "--rounds", 1)
    assert result.exit_code == 1
    assert f"Error: {output}: cannot be written: No space left on device" in result.stderr
    monkeypatch.undo()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"report.html": "old"}


def test_without_jinja2_the_extra_is_named_before_anything_is_measured(
    run: Run, classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "bert_export.report.page"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = run("report", classifier_bundle, "-o", tmp_path / "report.html")
    assert result.exit_code == 1
    assert "report needs the Python module 'jinja2', which is not installed" in result.stderr
    assert "install it with: pip install " in result.stderr
    assert "[report]'" in result.stderr
    assert "verifying" not in result.stderr
    assert run("report", classifier_bundle, "--json", "--rounds", 1).exit_code == 0


def test_a_damaged_bundle_says_what_to_do(run: Run, classifier_bundle: Path, copy_bundle: Any, tmp_path: Path) -> None:
    bundle = copy_bundle(classifier_bundle)
    (bundle / "model.int8.onnx").write_bytes(b"")
    result = run("report", bundle, "-o", tmp_path / "report.html")
    assert result.exit_code == 1
    assert "checks failed (model.int8.onnx: " in result.stderr
    assert "export the bundle again or make a new copy of it" in result.stderr
    assert not (tmp_path / "report.html").exists()
