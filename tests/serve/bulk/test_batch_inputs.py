"""Inputs of `bert-export batch`: patterns, formats, columns, and what is wrong with them."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_runtime import DataError, InputError, NextSentencePrediction, QuestionAnswering, load
from bert_serve.bulk.input_columns import InputColumns
from bert_serve.bulk.input_files import find_inputs
from bert_serve.bulk.part_reader import read_part
from bert_serve.bulk.parts import plan_parts

from .conftest import RunBatch, ids, read_answers, text, write_parquet


def test_folders_of_a_pattern_are_kept(run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("2024/a.parquet", "2024/05/a.parquet", "b.parquet")):
        write_parquet(tmp_path / "texts" / name, number, 1)
    output = tmp_path / "answers"
    result = run_batch(classifier_bundle, "--input", f"{tmp_path}/texts/**/*.parquet", "--output", output)
    assert result.exit_code == 0
    assert list(read_answers(output)) == ["2024/05/a.parquet", "2024/a.parquet", "b.parquet"]


def test_a_file_that_two_patterns_match_is_read_once(texts: Path) -> None:
    found = find_inputs([str(texts), f"{texts}/a.*", f"{texts}/[ab].parquet"])
    assert [file.name for file in found] == ["a.parquet", "b.parquet", "c.parquet"]


@pytest.mark.parametrize("part_rows", [1, 3, 7, 16, 40, 100])
@pytest.mark.parametrize("batch_rows", [1, 4, 4096])
def test_parts_cover_all_rows_once(part_rows: int, batch_rows: int, texts: Path) -> None:
    parts = plan_parts(find_inputs([f"{texts}/a.parquet"]), part_rows)
    found = []
    for part in parts:
        _, batches = read_part(part, InputColumns("text"), ["id"], batch_rows)
        rows = [number for batch, _ in batches for number in batch.column("id").to_pylist()]
        assert len(rows) == part.rows
        found += rows
    assert found == list(range(40))


def test_text_files(run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    numbers = range(3)
    (folder / "a.csv").write_text("id,text\n" + "".join(f"{number},{text(number)}\n" for number in numbers))
    with gzip.open(folder / "b.jsonl.gz", "wt") as stream:
        stream.writelines(json.dumps({"id": n, "more": {"x": [n]}, "text": text(n)}) + "\n" for n in numbers)
    (folder / "c.txt").write_text("".join(f"{text(number)}\n" for number in numbers))
    output = tmp_path / "answers"
    assert run_batch(classifier_bundle, "--input", f"{folder}/*", "--output", output).exit_code == 0
    answers = read_answers(output)
    expected = [answer.to_dict()["label"] for answer in load(classifier_bundle)([text(number) for number in numbers])]
    assert list(answers) == ["a.parquet", "b.parquet", "c.parquet"]
    assert {tuple(table["label"].to_pylist()) for table in answers.values()} == {tuple(expected)}
    assert answers["a.parquet"]["id"].to_pylist() == ["0", "1", "2"]
    assert answers["b.parquet"]["id"].to_pylist() == [0, 1, 2]
    assert answers["b.parquet"]["more"].to_pylist() == [{"x": [number]} for number in numbers]


def test_rows_of_text_files_that_cannot_be_read(run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"message": "hello", "n": 1}\nnonsense\n{"message": "bye", "n": 2}\n{"n": 3}\n')
    arguments = [classifier_bundle, "--input", path, "--column", "message", "--output", tmp_path / "answers"]
    assert run_batch(*arguments).exit_code == 0
    answers = read_answers(tmp_path / "answers")["texts.parquet"]
    assert answers["message"].to_pylist() == ["hello", None, "bye", None]
    assert answers["n"].to_pylist() == [1, None, 2, None]
    errors = answers["error"].to_pylist()
    assert (errors[0], errors[2]) == (None, None)
    assert f"{path}:2: not JSON" in errors[1]
    assert f"{path}:4: expected 'message'" in errors[3]
    result = run_batch(*arguments, "--on-error", "raise", "--force")
    assert (result.exit_code, f"{path}:2: not JSON" in result.stderr) == (1, True)


def test_values_unlike_the_first_rows_are_reported(
    run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path
) -> None:
    rows = [{"text": "hello", "n": 1}] * 4096 + [{"text": "hello", "n": "one"}]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [classifier_bundle, "--input", tmp_path / "texts.jsonl", "--output", tmp_path / "answers"]
    result = run_batch(*arguments)
    assert result.exit_code == 1
    assert "texts.jsonl:4097: in this row" in result.stderr
    assert "the column 'n' holds something else" in result.stderr


def test_columns_that_first_rows_lack_are_reported_or_left_out(
    run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path
) -> None:
    rows = [{"text": "hello", "n": 1}] * 4096 + [{"text": "hello", "n": 1, "id": 7}]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [classifier_bundle, "--input", tmp_path / "texts.jsonl", "--output", tmp_path / "answers"]
    result = run_batch(*arguments)
    assert result.exit_code == 1
    assert "texts.jsonl:4097: the column 'id' is not in any of the file's first rows" in result.stderr
    assert run_batch(*arguments, "--keep", "text", "--force").exit_code == 0
    assert read_answers(tmp_path / "answers")["texts.parquet"].num_rows == 4097


@pytest.mark.parametrize(
    ("first", "later"),
    [({"x": 1}, {"x": 1, "y": 2}), ([{"x": {"z": 1}}], [{"x": {"z": 1, "y": 2}}])],
)
def test_fields_that_objects_of_the_first_rows_lack_are_reported(
    first: Any, later: Any, run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path
) -> None:
    """Arrow would drop them."""
    rows = [{"text": "hello", "meta": first}] * 4096 + [{"text": "bye", "meta": later}]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [classifier_bundle, "--input", path, "--output", tmp_path / "answers"]
    result = run_batch(*arguments)
    assert (result.exit_code, "the column 'meta' holds something else than the file's" in result.stderr) == (1, True)
    path.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    assert run_batch(*arguments, "--force").exit_code == 0
    assert read_answers(tmp_path / "answers")["texts.parquet"]["meta"].to_pylist()[0] == later


def test_objects_without_fields_are_json_text(run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path) -> None:
    """Parquet cannot hold them otherwise."""
    (tmp_path / "a.jsonl").write_text('{"text": "hello", "meta": {}, "more": [{}]}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "bye"}\n')
    result = run_batch(classifier_bundle, "--input", tmp_path / "*.jsonl", "--output", tmp_path / "answers")
    assert result.exit_code == 0, result.stderr
    answers = read_answers(tmp_path / "answers")
    assert (answers["a.parquet"]["meta"].to_pylist(), answers["a.parquet"]["more"].to_pylist()) == (["{}"], ["[{}]"])
    assert answers["b.parquet"].num_rows == 1


@pytest.mark.parametrize("before", [0, 4096])
def test_a_row_that_utf_8_cannot_express_stops_no_other(
    before: int, run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path
) -> None:
    rows = [{"text": "hello", "id": "a"}] * before + [
        {"text": "cut \ud83d", "id": "b"},
        {"text": "bye", "id": "c\ud83d"},
    ]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "bye", "id": "d"}]))
    assert run_batch(classifier_bundle, "--input", path, "--output", tmp_path / "answers").exit_code == 0
    answers = read_answers(tmp_path / "answers")["texts.parquet"].slice(before)
    assert answers["id"].to_pylist() == [None, None, "d"]
    errors = answers["error"].to_pylist()
    assert f"{path}:{before + 1}: holds a lone surrogate (U+D83D)" in errors[0]
    assert (errors[1] is None, errors[2]) == (False, None)


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_parquet_texts_that_are_not_utf_8_stop_no_other(
    kind: pa.DataType, nullable: bool, run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path
) -> None:
    data = pa.array([b"hello", b"caf\xe9", None if nullable else b"hi", b"bye"])
    plain = pa.StringArray.from_buffers(len(data), data.buffers()[1], data.buffers()[2], data.buffers()[0])
    texts = plain.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else plain.cast(kind)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", texts.type, nullable)])
    pq.write_table(pa.table({"id": [0, 1, 2, 3], "text": texts}, schema), tmp_path / "texts.parquet")
    arguments = [classifier_bundle, "--input", tmp_path / "texts.parquet", "--output", tmp_path / "answers"]
    assert run_batch(*arguments).exit_code == 0
    answers = read_answers(tmp_path / "answers")["texts.parquet"]
    assert answers["text"].to_pylist() == ["hello", None, None if nullable else "hi", "bye"]
    errors = answers["error"].to_pylist()
    assert "texts.parquet: row 1: the column 'text' is not UTF-8" in errors[1]
    assert (errors[0], errors[2] is None, errors[3]) == (None, not nullable, None)
    result = run_batch(*arguments, "--on-error", "raise", "--force")
    assert (result.exit_code, "row 1: the column 'text' is not UTF-8" in result.stderr) == (1, True)


def test_pairs(run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [0], "a": ["hello"], "b": ["my card"]}), tmp_path / "pairs.parquet")
    columns = ["--column", "a", "--pair-column", "b", "--precision", "fp32"]
    result = run_batch(
        classifier_bundle, "--input", tmp_path / "pairs.parquet", *columns, "--keep", "id", "--output", tmp_path / "x"
    )
    assert result.exit_code == 0
    (answers,) = read_answers(tmp_path / "x").values()
    assert answers.schema.names == ["id", "label", "score", "truncated", "error"]
    expected = load(classifier_bundle, precision="fp32")(("hello", "my card")).to_dict()
    assert answers["score"].to_pylist() == pytest.approx([expected["score"]], abs=1e-6)


@pytest.mark.parametrize("keep", [[], ["--keep", "text", "--keep", "text_pair"]], ids=["all", "kept"])
@pytest.mark.parametrize("pair", [[], ["--pair-column", "text"]], ids=["text", "pair"])
def test_text_files_keep_the_columns_that_parquet_keeps(
    pair: list[str], keep: list[str], run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path
) -> None:
    """Also those that have a name that another column is read under."""
    row = {"text": "my card is late", "title": "hello", "text_pair": "bye"}
    (tmp_path / "a.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    (tmp_path / "b.jsonl").write_text(json.dumps(row) + "\n")
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "c.parquet")
    arguments = ["--input", f"{tmp_path}/?.*", "--output", tmp_path / "answers", "--column", "title"]
    assert run_batch(classifier_bundle, *arguments, *pair, *keep).exit_code == 0
    csv, jsonl, parquet = (table.to_pylist() for table in read_answers(tmp_path / "answers").values())
    assert csv == jsonl == parquet
    assert (csv[0]["text"], csv[0]["text_pair"], "title" in csv[0]) == ("my card is late", "bye", not keep)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"PAR1 nonsense", "a.parquet: expected a Parquet file"),
        ("a.xlsx", b"x", "a.xlsx: expected a file that ends in .parquet, or in .jsonl, .csv, .tsv, .txt"),
        ("a.csv", b"sentence\nhello\n", "a.csv:1: expected a header with a column 'text'"),
        ("a.jsonl", b"x\n", "a.jsonl: expected rows, found none that can be read"),
    ],
)
def test_files_that_hold_no_texts(
    name: str, content: bytes, message: str, run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    result = run_batch(classifier_bundle, "--input", tmp_path / name, "--output", tmp_path / "answers")
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert read_answers(tmp_path / "answers") == {}


@pytest.mark.parametrize(("name", "content"), [("a.csv", ""), ("a.csv", "id,text\n"), ("a.jsonl", ""), ("a.txt", "")])
@pytest.mark.parametrize("keep", [(), ("--keep", "id"), ("--keep", "text")])
def test_files_without_rows_have_no_answers(
    name: str, content: str, keep: Sequence[str], run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    result = run_batch(classifier_bundle, "--input", tmp_path / name, "--output", tmp_path / "answers", *keep)
    assert result.exit_code == 0
    table = read_answers(tmp_path / "answers")["a.parquet"]
    assert len(table) == 0
    assert table.column_names[:3] == ["id" if "id" in keep else "text", "label", "score"]


def test_a_missing_column_is_reported(
    run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    result = run_batch(classifier_bundle, "--input", texts, "--column", "sentence", "--output", tmp_path / "answers")
    assert (result.exit_code, "a.parquet: expected a column 'sentence', found 'id', 'text'" in result.stderr) == (
        1,
        True,
    )


def test_a_column_that_is_named_wrongly_is_reported_with_all_that_there_are(
    run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "hello", "id": 1}\n')
    result = run_batch(
        classifier_bundle, "--input", tmp_path / "a.jsonl", "--keep", "id", "--output", tmp_path / "answers"
    )
    assert result.exit_code == 1
    assert "a.jsonl: expected a column 'text', found 'body', 'id'" in result.stderr


def test_damage_in_the_middle_of_a_file(run_batch: RunBatch, classifier_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.parquet"
    write_parquet(path, 0, 5000, row_group_size=1000)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2000] = bytes(2000)
    path.write_bytes(data)
    result = run_batch(classifier_bundle, "--input", path, "--output", tmp_path / "answers")
    assert (result.exit_code, f"{path}: cannot be read" in result.stderr) == (1, True)
    assert read_answers(tmp_path / "answers") == {}


def test_columns_of_questions() -> None:
    assert InputColumns.of(QuestionAnswering(), None, None) == InputColumns("question", "context")
    assert InputColumns.of(QuestionAnswering(), None, None, "q") == InputColumns("q", "context")
    with pytest.raises(InputError, match="reads a question and a context"):
        InputColumns.of(QuestionAnswering(), "text", None)
    assert InputColumns.of(NextSentencePrediction(), None, None) == InputColumns("text", "text_pair")


def test_files_of_one_name_need_separate_folders(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", 0, 1)
    (tmp_path / "a.csv").write_text("text\nhello\n")
    with pytest.raises(DataError, match="expected input files of different names"):
        find_inputs([f"{tmp_path}/a.*"])
    with pytest.raises(DataError, match="expected files that match, found none"):
        find_inputs([f"{tmp_path}/b*"])


def test_usage(run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path) -> None:
    arguments = [classifier_bundle, "--input", texts, "--output", tmp_path / "answers"]
    result = run_batch(*arguments, "--replicas", 2)
    assert (result.exit_code, "--address and --replicas are for --engine ray" in result.stderr) == (2, True)
    result = run_batch(*arguments, "--bio")
    assert (result.exit_code, "text-classification has the options top_k, found bio" in result.stderr) == (1, True)
    assert ids(read_answers(tmp_path / "answers")) == []
