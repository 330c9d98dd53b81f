"""`bert-export batch` among files that change: inputs, the bundle, and files of others in the output folder."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bert_runtime import BundleError, DataError
from bert_serve import batch_function
from bert_serve.bulk import part_writer
from bert_serve.bulk.local_engine import local_engine
from bert_serve.bulk.part_writer import Job, PartResult, answer_part
from bert_serve.bulk.parts import Part
from bert_serve.bulk.run import prepare_run

from ...conftest import CopyBundle
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
    assert (result.exit_code, "was changed or replaced after the run had begun" in result.stderr) == (1, True)
    assert read_answers(tmp_path / "answers") == {}


@pytest.mark.parametrize("rows", [3, 40, 100])
def test_a_file_that_is_replaced_before_its_first_part_has_no_answers(
    rows: int, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    (texts / "d.csv").write_text("id,text\n0,hello\n")
    patterns = [str(texts / "b.parquet"), str(texts / "a.parquet"), str(texts / "d.csv")]
    with prepare_run(patterns, tmp_path / "answers", batch_function(classifier_bundle)) as run:
        write_parquet(texts / "a.parquet", 100, rows)
        (texts / "d.csv").write_text("id,text\n" + "0,hello\n" * rows)
        with pytest.raises(DataError, match=r"a\.parquet: was changed or replaced.*d\.csv: was changed") as raised:
            run.execute(local_engine)
    assert "expected 16 bytes of 20" in str(raised.value)
    assert f"found {8 + 8 * rows} bytes of 20" in str(raised.value)
    assert list(read_answers(tmp_path / "answers")) == ["b.parquet"]


def test_a_file_that_is_replaced_between_its_parts_is_not_mixed(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    def replace_after_first(job: Job, parts: Sequence[Part], advance: Any) -> Iterator[PartResult]:
        yield answer_part(job, parts[0])
        write_parquet(texts / "a.parquet", 100, 40)
        yield from local_engine(job, parts[1:], advance)

    output = tmp_path / "answers"
    function = batch_function(classifier_bundle)
    with (
        prepare_run([str(texts / "a.parquet")], output, function, part_rows=16) as run,
        pytest.raises(DataError, match="was changed or replaced after the run had begun"),
    ):
        run.execute(replace_after_first)
    assert ids(read_answers(output)) == list(range(16))
    arguments = [classifier_bundle, "--input", texts / "a.parquet", "--part-rows", 16, "--output", output]
    assert "a.parquet has changed" in run_batch(*arguments).stderr
    assert run_batch(*arguments, "--force").exit_code == 0
    assert ids(read_answers(output)) == list(range(100, 140))


def test_a_bundle_that_is_replaced_gives_no_answers_under_the_digest_of_another(
    run_batch: RunBatch, classifier_bundle: Path, copy_bundle: CopyBundle, texts: Path, tmp_path: Path
) -> None:
    bundle, output = copy_bundle(classifier_bundle), tmp_path / "answers"
    with prepare_run([str(texts)], output, batch_function(bundle)) as run:
        shutil.rmtree(bundle)
        copy_bundle(classifier_bundle, lambda manifest: manifest["task"]["labels"].reverse())
        with pytest.raises(BundleError, match="expected the bundle that this work began with"):
            run.execute(local_engine)
    assert read_answers(output) == {}
    arguments = [bundle, "--input", texts, "--output", output]
    assert "bundle_sha256 was" in run_batch(*arguments).stderr
    assert run_batch(*arguments, "--force").exit_code == 0
    assert ids(read_answers(output)) == list(range(45))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 41}, "expected 41 rows from row 0, found 40"),
        ({"rows": None, "is_readable": False}, "could not be read when the run was planned, and now it can"),
    ],
    ids=["damaged", "repaired"],
)
def test_a_part_has_the_rows_that_were_planned_or_no_file(
    change: dict[str, Any], message: str, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    with prepare_run([str(texts / "a.parquet")], tmp_path / "answers", batch_function(classifier_bundle)) as run:
        result = answer_part(run.job, replace(run.parts[0], **change))
    assert result.failure is not None
    assert message in result.failure
    assert read_answers(tmp_path / "answers") == {}
