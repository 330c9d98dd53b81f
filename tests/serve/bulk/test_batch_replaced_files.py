"""`bert-export batch` among files that change: inputs that are replaced, and files of others in the output folder."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bert_serve.bulk import part_writer

from .conftest import RunBatch, ids, read_answers, states, write_parquet


def test_changed_inputs_are_refused(run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path) -> None:
    arguments = [classifier_bundle, "--input", texts, "--output", tmp_path / "answers"]
    run_batch(*arguments)
    (texts / "a.parquet").touch()  # a copy of the same bytes is no change
    assert run_batch(*arguments).exit_code == 0
    write_parquet(texts / "b.parquet", 100, 5)
    result = run_batch(*arguments)
    assert (result.exit_code, f"{texts / 'b.parquet'} has changed" in result.stderr) == (1, True)
    assert run_batch(*arguments, "--force").exit_code == 0
    assert ids(read_answers(tmp_path / "answers"))[-5:] == list(range(100, 105))


def test_files_of_others_are_never_replaced(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    before = states(texts)
    result = run_batch(classifier_bundle, "--input", texts, "--output", texts, "--force")
    assert (result.exit_code, "expected inputs outside of the output folder" in result.stderr) == (1, True)
    other = tmp_path / "other"
    write_parquet(other / "b.parquet", 0, 1)
    result = run_batch(classifier_bundle, "--input", texts, "--output", other, "--force")
    assert (result.exit_code, "found a file that no run has written" in result.stderr) == (1, True)
    assert states(texts) == before


@pytest.mark.parametrize("options", [[], ["--force"]], ids=["continued", "forced"])
def test_files_of_others_are_never_taken_for_answers(
    options: list[str], run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "answers"
    arguments = [classifier_bundle, "--output", output, "--input", texts / "a.parquet"]
    assert run_batch(*arguments).exit_code == 0
    write_parquet(output / "b.parquet", 0, 1)
    before = states(output)
    for _ in range(2):  # a run that was refused does not record the file
        result = run_batch(*arguments, "--input", texts / "b.parquet", *options)
        assert result.exit_code == 1
        assert f"{output / 'b.parquet'}: expected a folder that is empty or has answers" in result.stderr
    assert states(output) == before
    (output / "b.parquet").unlink()
    assert run_batch(*arguments, "--input", texts / "b.parquet", *options).exit_code == 0
    assert ids(read_answers(output)) == list(range(45))


def test_a_hostile_record_removes_nothing_outside(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    record = {"format_version": 1, "options": {}, "inputs": {}, "outputs": ["../texts/a.parquet"]}
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers/_bert_export_batch.json").write_text(json.dumps(record))
    result = run_batch(classifier_bundle, "--input", texts, "--output", tmp_path / "answers", "--force")
    assert (result.exit_code, "expected the record of an earlier run" in result.stderr) == (1, True)
    assert (texts / "a.parquet").exists()


def test_a_file_that_changes_while_it_is_read_has_no_answers(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = part_writer._answer_rows

    def touch_and_answer(*arguments: Any) -> Any:
        os.utime(texts / "b.parquet", ns=(0, 0))
        return answer(*arguments)

    monkeypatch.setattr(part_writer, "_answer_rows", touch_and_answer)
    result = run_batch(classifier_bundle, "--input", texts / "b.parquet", "--output", tmp_path / "answers")
    assert (result.exit_code, "was changed while it was read" in result.stderr) == (1, True)
    assert read_answers(tmp_path / "answers") == {}
