"""`bert-export predict --on-error`: rows that cannot be read, and inputs that cannot be processed, among others."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]

ROWS = {
    "rows.jsonl": ['{"text": "hello"}', '{"text": 5}', '{"text": "bye"}', '{"text": "\\ud83d"}', "{", '{"text": "a"}'],
    "rows.csv": ["text,n", "hello,1", "too,many,columns", "bye,2"],
}
PROBLEMS = {
    "rows.jsonl": {
        2: "expected 'text' to be a string, found int",
        4: "the text holds a lone surrogate (U+D83D) at character 0",
        5: "not JSON: Expecting property name enclosed in double quotes at column 2",
    },
    "rows.csv": {3: "expected 2 columns as in the first row, found 3"},
}
"""What is wrong, by line number."""


@pytest.fixture(params=ROWS)
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / str(request.param)
    path.write_text("\n".join(ROWS[path.name]) + "\n")
    return path


def _inputs(path: Path) -> list[int]:
    """Return the line numbers of the inputs, good and bad."""
    first = 2 if path.suffix == ".csv" else 1
    return list(range(first, len(ROWS[path.name]) + 1))


def test_raise_prints_the_results_before_the_error(run: Run, classifier_bundle: Path, rows: Path) -> None:
    number, problem = next(iter(PROBLEMS[rows.name].items()))
    result = run("predict", classifier_bundle, "--input", rows)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {rows}:{number}: {problem}")
    assert [line.rpartition("\t")[2] for line in result.stdout.splitlines()] == ["hello"]


def test_skip_names_the_lines_that_have_no_result(run: Run, classifier_bundle: Path, rows: Path) -> None:
    result = run("predict", classifier_bundle, "--input", rows, "--on-error", "skip")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == len(_inputs(rows)) - len(PROBLEMS[rows.name])
    assert [line.startswith("error\t") for line in result.stdout.splitlines()].count(True) == 0
    for line, (number, problem) in zip(result.stderr.splitlines(), PROBLEMS[rows.name].items(), strict=True):
        assert line.startswith(f"skipped {rows}:{number}: {problem}")


def test_return_keeps_one_result_per_input(run: Run, classifier_bundle: Path, rows: Path, tmp_path: Path) -> None:
    shown = run("predict", classifier_bundle, "--input", rows, "--on-error", "return", "--json")
    output = tmp_path / "answers.jsonl"
    written = run("predict", classifier_bundle, "--input", rows, "--on-error", "return", "--output", output)
    assert (shown.exit_code, written.exit_code) == (0, 0)
    assert shown.stdout == output.read_text(encoding="utf-8")
    for number, line in zip(_inputs(rows), shown.stdout.splitlines(), strict=True):
        problem = PROBLEMS[rows.name].get(number)
        if problem is None:
            assert list(json.loads(line)) == ["label", "score"]
        else:
            assert json.loads(line)["error"].startswith(f"{rows}:{number}: {problem}")


def test_return_prints_errors_as_text(run: Run, classifier_bundle: Path) -> None:
    result = run("predict", classifier_bundle, "hello", "caf\udce9", "--on-error", "return")
    assert result.exit_code == 0
    good, bad = result.stdout.splitlines()
    assert good.endswith("\thello")
    assert bad.startswith("error\tinput 1: the text holds a lone surrogate (U+DCE9) at character 3")
    assert bad.endswith("\tcaf\\udce9")


def test_files_that_cannot_be_read_at_all_are_errors(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("sentence\nhello\n")
    for on_error in ("raise", "skip", "return"):
        result = run("predict", classifier_bundle, "--input", tmp_path / "rows.csv", "--on-error", on_error)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "expected a header with a column 'text'" in result.stderr
