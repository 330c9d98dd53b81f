"""`bert-export batch`: files in, files of answers out; whole, once each, in order, and continued by a second run."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_runtime import CudaUnavailableError, DeploymentError, Manifest, load
from bert_runtime.plan import default_plan
from bert_serve.bulk.batch_function import BatchFunction
from bert_serve.bulk.part_writer import answer_part
from bert_serve.bulk.run import prepare_run

from .conftest import RunBatch, ids, read_answers, states, text, write_parquet


def test_answers_have_the_rows_in_order(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "answers"
    result = run_batch(classifier_bundle, "--input", f"{texts}/*.parquet", "--output", output, "--part-rows", 16)
    assert (result.exit_code, result.stdout.count("45 rows in 5 files of answers")) == (0, 1)
    answers = read_answers(output)
    names = [f"a-0000{number}-of-00003.parquet" for number in range(3)]
    assert list(answers) == [*names, "b.parquet", "c.parquet"]
    assert [len(table) for table in answers.values()] == [16, 16, 8, 5, 0]
    assert ids(answers) == list(range(45))
    expected = load(classifier_bundle)([text(number) for number in range(45)])
    labels = [label for table in answers.values() for label in table["label"].to_pylist()]
    assert labels == [answer.to_dict()["label"] for answer in expected]
    assert {table.schema.names[-1] for table in answers.values()} == {"error"}


def test_a_second_run_does_what_is_missing(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "answers"
    arguments = [classifier_bundle, "--input", f"{texts}/*.parquet", "--output", output, "--part-rows", 16]
    run_batch(*arguments)
    before = states(output)
    (output / "a-00001-of-00003.parquet").unlink()
    write_parquet(texts / "d.parquet", 45, 3)
    summary = json.loads(run_batch(*arguments, "--json").stdout)
    assert {key: summary[key] for key in ("files", "parts", "parts_done_before", "rows")} == {
        "files": 4,
        "parts": 6,
        "parts_done_before": 4,
        "rows": 19,
    }
    after = states(output)
    assert {name for name in after if after[name] != before.get(name)} == {"a-00001-of-00003.parquet", "d.parquet"}
    assert ids(read_answers(output)) == list(range(48))
    assert "all 6 files of answers are there already" in run_batch(*arguments).stdout
    assert states(output) == after


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prefix", "x_"], "prefix was '', now 'x_'"),
        (["--part-rows", "9"], "part_rows was 50000, now 9"),
        (["--precision", "fp32"], "precision was 'int8', now 'fp32'"),
        (["--keep", "id"], "keep was None, now ['id']"),
    ],
)
def test_other_options_are_refused(
    options: list[str], message: str, run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    arguments = [classifier_bundle, "--input", texts, "--output", tmp_path / "answers", "--precision", "int8"]
    run_batch(*arguments)
    before = states(tmp_path / "answers")
    result = run_batch(*arguments, *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert "start over with --force" in result.stderr
    assert states(tmp_path / "answers") == before
    assert run_batch(*arguments, *options, "--force").exit_code == 0
    assert ids(read_answers(tmp_path / "answers")) == list(range(45))


def test_a_run_is_not_continued_with_the_precision_that_was_tuned_meanwhile(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [classifier_bundle, "--input", texts, "--output", tmp_path / "answers"]
    assert run_batch(*arguments).exit_code == 0
    default = Manifest.read(classifier_bundle).default_precision
    other = "fp32" if default == "int8" else "int8"
    for chosen, exit_code in ((default, 0), (other, 1)):
        plan = default_plan(chosen)
        monkeypatch.setattr("bert_runtime.variant_choice.tuned_plan", lambda bundle, plan=plan: plan)
        result = run_batch(*arguments)
        assert result.exit_code == exit_code
    assert f"precision was '{default}', now '{other}'" in result.stderr
    assert run_batch(*arguments, "--precision", default, "--force").exit_code == 0


@pytest.mark.parametrize(("asked", "exit_code"), [("auto", 0), (None, 0), ("fp32", 1)])
def test_a_run_of_the_first_release_is_continued(
    asked: str | None, exit_code: int, run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    """Its record has the precision that was asked for, and no device."""
    arguments = [classifier_bundle, "--input", texts, "--output", tmp_path / "answers", "--precision", "int8"]
    run_batch(*arguments)
    path = tmp_path / "answers/_bert_export_batch.json"
    record = json.loads(path.read_text())
    del record["options"]["device"]
    record["options"]["precision"] = asked
    path.write_text(json.dumps(record))
    assert run_batch(*arguments).exit_code == exit_code


def test_a_machine_without_the_output_folder_is_told(classifier_bundle: Path, texts: Path, tmp_path: Path) -> None:
    """As a node of a cluster that does not share it: a folder of its own would swallow the answers."""
    with prepare_run([str(texts)], tmp_path / "answers", BatchFunction(str(classifier_bundle))) as run:
        elsewhere = replace(run.job, output=tmp_path / "elsewhere")
        with pytest.raises(
            DeploymentError, match=r"elsewhere: expected the output folder of this run on .*, found none"
        ):
            answer_part(elsewhere, run.parts[0])
    assert not (tmp_path / "elsewhere").exists()


def test_workers_get_the_device_and_the_precision_of_this_machine(
    classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    with prepare_run([str(texts)], tmp_path / "answers", BatchFunction(str(classifier_bundle))) as run:
        assert dict(run.job.function.load_options) == {
            "precision": Manifest.read(classifier_bundle).default_precision, "device": "cpu",
        }  # fmt: skip


def test_a_gpu_that_cannot_be_used_is_the_cpu(
    classifier_bundle: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where onnxruntime-gpu is installed and there is no GPU, or it is full."""
    on_cuda = Mock(side_effect=[("cuda", "fp16"), ("cpu", "fp32")])
    monkeypatch.setattr("bert_serve.bulk.run.chosen_variant", on_cuda)
    monkeypatch.setattr(BatchFunction, "model", Mock(side_effect=CudaUnavailableError("no GPU")))
    with prepare_run([str(texts)], tmp_path / "answers", BatchFunction(str(classifier_bundle))) as run:
        assert dict(run.job.function.load_options) == {"precision": "fp32", "device": "cpu"}
    assert [call.args[2] for call in on_cuda.call_args_list] == ["auto", "cpu"]


@pytest.mark.parametrize("option", ["--input", "--output"])
def test_addresses_are_refused(
    option: str,
    run_batch: RunBatch,
    classifier_bundle: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"--input": texts, "--output": tmp_path / "answers", option: "s3://bucket/texts"}
    result = run_batch(classifier_bundle, *(value for item in given.items() for value in item))
    assert (result.exit_code, "bucket/texts: expected the path of a file or folder, found" in result.stderr) == (
        1,
        True,
    )
    assert not (tmp_path / "s3:").exists()


def test_links_are_read_by_their_own_names(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    """As in the hub's cache, where they lead to files without an extension."""
    (tmp_path / "blob").write_bytes((texts / "a.parquet").read_bytes())
    (tmp_path / "links").mkdir()
    (tmp_path / "links/a.parquet").symlink_to(tmp_path / "blob")
    result = run_batch(classifier_bundle, "--input", tmp_path / "links", "--output", tmp_path / "answers")
    assert result.exit_code == 0, result.stderr
    assert list(read_answers(tmp_path / "answers")) == ["a.parquet"]


def test_a_file_is_not_answered_under_a_second_name(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    output = ["--output", tmp_path / "answers"]
    assert run_batch(classifier_bundle, "--input", texts, *output).exit_code == 0
    result = run_batch(classifier_bundle, "--input", f"{texts.parent}/t*/a.parquet", *output)
    assert result.exit_code == 1
    assert "a.parquet has its answers already, under the name a.parquet, as from another" in result.stderr


def test_another_bundle_is_refused(
    run_batch: RunBatch, classifier_bundle: Path, embedding_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    arguments = ["--input", texts, "--output", tmp_path / "answers"]
    run_batch(classifier_bundle, *arguments)
    result = run_batch(embedding_bundle, *arguments)
    assert (result.exit_code, "bundle_sha256 was" in result.stderr) == (1, True)


def test_answers_of_a_file_are_never_taken_for_those_of_another_of_its_name(
    run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path
) -> None:
    (folder := tmp_path / "texts").mkdir()
    (folder / "a.csv").write_text("text\nhello\n")
    assert run_batch(classifier_bundle, "--input", folder / "a.csv", "--output", tmp_path / "answers").exit_code == 0
    (folder / "a.jsonl").write_text('{"text": "bye"}\n')
    result = run_batch(classifier_bundle, "--input", folder / "a.jsonl", "--output", tmp_path / "answers")
    assert result.exit_code == 1
    assert "a.jsonl would have the answers of a.csv, another file of this name" in result.stderr


def test_a_part_is_never_taken_for_that_of_another_file(
    run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path
) -> None:
    write_parquet(tmp_path / "texts/a.parquet", 0, 4)
    write_parquet(tmp_path / "texts/a-00000-of-00002.parquet", 0, 1)
    arguments = ["--input", tmp_path / "texts", "--part-rows", 2, "--output", tmp_path / "answers"]
    result = run_batch(classifier_bundle, *arguments)
    assert (result.exit_code, "a-00000-of-00002.parquet: expected one file of answers" in result.stderr) == (1, True)


def test_a_part_that_fails_leaves_no_file_and_stops_no_other(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    table = pa.table({"id": range(4), "text": ["hello", "bye", None, "thanks"]})
    pq.write_table(table, texts / "a.parquet")
    output = tmp_path / "answers"
    result = run_batch(classifier_bundle, "--input", texts, "--output", output, "--on-error", "raise")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{texts / 'a.parquet'}: rows from 0: input 2: expected a text" in result.stderr
    assert "(2 of 3 parts are done; a second run does the others)" in result.stderr
    assert sorted(path.name for path in output.iterdir()) == ["_bert_export_batch.json", "b.parquet", "c.parquet"]


def test_a_broken_file_stops_no_other_and_is_answered_once_it_is_repaired(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    whole, output = (texts / "b.parquet").read_bytes(), tmp_path / "answers"
    (texts / "b.parquet").write_bytes(whole[:100])
    arguments = (classifier_bundle, "--input", texts, "--output", output)
    result = run_batch(*arguments)
    assert result.exit_code == 1
    assert f"{texts / 'b.parquet'}: expected a Parquet file" in result.stderr
    assert list(read_answers(output)) == ["a.parquet", "c.parquet"]
    before = (output / "a.parquet").stat().st_ino
    (texts / "b.parquet").write_bytes(whole)
    assert run_batch(*arguments).exit_code == 0
    assert list(read_answers(output)) == ["a.parquet", "b.parquet", "c.parquet"]
    assert (output / "a.parquet").stat().st_ino == before
    (texts / "b.parquet").write_bytes(whole[:100])
    assert "b.parquet has changed" in run_batch(*arguments).stderr


def test_rows_without_an_answer_are_counted(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": range(2), "text": ["hello", None]}), texts / "a.parquet")
    result = run_batch(classifier_bundle, "--input", texts, "--output", tmp_path / "answers")
    assert "1 rows could not be processed; see the column error" in result.stdout
    answers = read_answers(tmp_path / "answers")["a.parquet"]
    assert answers["label"].is_valid().to_pylist() == [True, False]


def test_memory_is_bounded_by_batches(
    run_batch: RunBatch,
    classifier_bundle: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows are read, answered and written a batch at a time, whatever the row groups are."""
    sizes = []
    answer = BatchFunction.__call__

    def record_size(self: BatchFunction, data: Any) -> Any:
        sizes.append(len(data))
        return answer(self, data)

    monkeypatch.setattr(BatchFunction, "__call__", record_size)
    write_parquet(texts / "a.parquet", 0, 9000)
    run_batch(classifier_bundle, "--input", texts / "a.parquet", "--output", tmp_path / "answers")
    assert (sum(sizes), max(sizes)) == (9000, 4096)
    assert pq.ParquetFile(tmp_path / "answers/a.parquet").num_row_groups == len(sizes)


KILLED = """
import sys, time
from bert_export.cli import main
from bert_serve.bulk import part_writer
from bert_export.cli.batch import batch
answer = part_writer._answer_rows
def slowly(*arguments):
    time.sleep(0.05)
    return answer(*arguments)
part_writer._answer_rows = slowly
main.add_command(batch)
main(sys.argv[1:])
"""


def start(arguments: Sequence[object]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", KILLED, "batch", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_killed_run_is_continued(
    number: signal.Signals, run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "answers"
    write_parquet(texts / "a.parquet", 0, 40)
    arguments = [classifier_bundle, "--input", texts, "--output", output, "--part-rows", 1]
    killed = start(arguments)
    deadline = time.monotonic() + 60
    while len(list(output.glob("*.parquet"))) < 3 and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    refused = run_batch(*arguments)
    assert (refused.exit_code, "another run is writing to this folder" in refused.stderr) == (1, True)
    killed.send_signal(number)
    killed.communicate(timeout=60)
    (output / ".a.parquet.01234567.partial").write_bytes(b"PAR1")  # what a kill leaves, if it hits a write
    before = states(output)
    assert 3 <= len(before) < 46
    assert run_batch(*arguments).exit_code == 0
    after = states(output)
    assert {name: after[name] for name in before} == before
    assert ids(read_answers(output)) == list(range(45))
    assert not list(output.glob(".*"))
