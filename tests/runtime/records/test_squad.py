"""SQuAD files, and the field answers of records."""

import copy
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bert_runtime.errors import DataError
from bert_runtime.records import read_records

from .test_records import record, write

CONTEXT = "Déjà vu 😀 is French. It means “already seen”."

DOCUMENT: dict[str, Any] = {
    "version": "v2.0",
    "data": [
        {
            "title": "Déjà_vu",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "56be4db0",
                            "question": "What language is it?",
                            "answers": [
                                {"text": "French", "answer_start": 13},
                                {"text": "is French", "answer_start": 10},
                            ],
                            "is_impossible": False,
                        },
                        {
                            "id": "56be4db1",
                            "question": "Who said it first?",
                            "answers": [],
                            "plausible_answers": [{"text": "French", "answer_start": 13}],
                            "is_impossible": True,
                        },
                    ],
                }
            ],
        },
        {"paragraphs": [{"context": "None.", "qas": [{"id": 7, "question": "Why?"}]}]},
    ],
}


def squad(folder: Path, document: object = DOCUMENT, name: str = "dev.json") -> Path:
    return write(folder / name, json.dumps(document, ensure_ascii=False))


@pytest.mark.parametrize("name", ["dev.json", "dev.json.gz"])
def test_squad_yields_one_record_per_question(tmp_path: Path, name: str) -> None:
    found, impossible, unlabelled = read_records(squad(tmp_path, name=name))
    assert found.fields == {
        "id": "56be4db0",
        "title": "Déjà_vu",
        "question": "What language is it?",
        "context": CONTEXT,
        "answers": [{"text": "French", "answer_start": 13}, {"text": "is French", "answer_start": 10}],
    }
    assert found.answers() == [("French", 13), ("is French", 10)]
    assert impossible.answers() == []
    assert unlabelled.fields == {"id": "7", "question": "Why?", "context": "None."}


def test_location_of_a_squad_record_is_its_question_id(tmp_path: Path) -> None:
    path = squad(tmp_path)
    records = read_records(path)
    assert [record.line for record in records] == [None] * 3
    assert [record.where for record in records] == [
        f"{path}: question 56be4db0",
        f"{path}: question 56be4db1",
        f"{path}: question 7",
    ]
    with pytest.raises(DataError, match=re.escape(f"{path}: question 7: expected a field 'answers', found only 'id'")):
        records[2].answers()


def test_impossible_question_has_no_gold_answers(tmp_path: Path) -> None:
    document = copy.deepcopy(DOCUMENT)
    question = document["data"][0]["paragraphs"][0]["qas"][1]
    question["answers"] = question["plausible_answers"]
    assert read_records(squad(tmp_path, document))[1].answers() == []
    del question["answers"]
    assert read_records(squad(tmp_path, document))[1].answers() == []


def change(document: Any, keys: tuple[str | int, ...], value: object) -> None:
    """Set a member of a document, or remove it if the value is `...`."""
    *parents, last = keys
    for key in parents:
        document = document[key]
    if value is ...:
        del document[last]
    else:
        document[last] = value


PARAGRAPH: tuple[str | int, ...] = ("data", 0, "paragraphs", 0)
QUESTION = (*PARAGRAPH, "qas", 0)
ANSWER = (*QUESTION, "answers", 1)
IN_QUESTION = "data[0].paragraphs[0].qas[0]"
IN_ANSWER = f"{IN_QUESTION}.answers[1]"


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("data",), ..., "expected 'data', found 'version'"),
        (("data",), {}, "expected 'data' to be a list, found dict"),
        (("data", 1), "x", "data[1]: expected an object, found str"),
        (("data", 1), {}, "data[1]: expected 'paragraphs', found nothing"),
        (("data", 1, "title"), 5, "data[1]: expected 'title' to be a string, found int"),
        (("data", 1, "paragraphs"), None, "data[1]: expected 'paragraphs' to be a list, found NoneType"),
        ((*PARAGRAPH, "context"), ..., "data[0].paragraphs[0]: expected 'context', found 'qas'"),
        ((*PARAGRAPH, "qas"), ..., "data[0].paragraphs[0]: expected 'qas', found 'context'"),
        ((*PARAGRAPH, "qas", 1), [], "data[0].paragraphs[0].qas[1]: expected an object, found list"),
        ((*QUESTION, "question"), ..., f"{IN_QUESTION}: expected 'question', found 'id', 'answers', 'is_impossible'"),
        ((*QUESTION, "id"), 1.5, f"{IN_QUESTION}: expected 'id' to be a string or a whole number, found float"),
        ((*QUESTION, "is_impossible"), 1, f"{IN_QUESTION}: expected 'is_impossible' to be true or false, found int"),
        ((*QUESTION, "answers"), "French", f"{IN_QUESTION}.answers: expected a list of answers, found str"),
        (ANSWER, "French", f"{IN_ANSWER}: expected an object with 'text' and 'answer_start', found str"),
        ((*ANSWER, "text"), ..., f"{IN_ANSWER}: expected 'text' and 'answer_start', found 'answer_start'"),
        ((*ANSWER, "text"), "", f"{IN_ANSWER}: expected 'text' to be a non-empty string, found ''"),
        ((*ANSWER, "answer_start"), 9, f"{IN_ANSWER}: expected 'is French' at character 9 of the context, found ' is"),
        (
            (*ANSWER, "answer_start"),
            999,
            f"{IN_ANSWER}: expected 'is French' at character 999 of the context, found ''",
        ),
        (
            (*ANSWER, "answer_start"),
            -35,
            f"{IN_ANSWER}: expected 'answer_start' to be a whole number from 0, found -35",
        ),
        (
            (*ANSWER, "answer_start"),
            "10",
            f"{IN_ANSWER}: expected 'answer_start' to be a whole number from 0, found '1",
        ),
    ],
)
def test_malformed_squad_documents_are_reported_with_json_path(
    tmp_path: Path, keys: tuple[str | int, ...], value: object, message: str
) -> None:
    document = copy.deepcopy(DOCUMENT)
    change(document, keys, value)
    path = squad(tmp_path, document)
    with pytest.raises(DataError, match=re.escape(f"{path}: {message}")):
        read_records(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ":1: not JSON: Expecting value at column 1"),
        ('{"data":\n [}', ":2: not JSON: Expecting value at column 3"),
        (
            '{"a": 1}\n{"a": 2}\n',
            ":2: not JSON: Extra data at column 1; a file of one JSON object per line must end in",
        ),
        ("[" * 100_000, ": not JSON: "),
        ('[{"text": "a"}]', ": expected an object with 'data' as in SQuAD, found list; a file of one JSON object per"),
        ('{"data": []}', ": expected at least one row, found none"),
        (b'{"data": "d\xe9j\xe0"}', ":1: expected UTF-8 text, found byte 0xe9"),
    ],
)
def test_malformed_squad_files_are_reported(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = write(tmp_path / "dev.json", content)
    with pytest.raises(DataError, match=re.escape(f"{path}{message}")):
        read_records(path)


def test_damaged_gzip_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "dev.json.gz"
    path.write_bytes(gzip.compress(json.dumps(DOCUMENT).encode())[:-20])
    with pytest.raises(DataError, match=re.escape(f"{path}: cannot be read")):
        read_records(path)


def test_squad_files_take_no_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dev\.json: expected no columns, .* found question=q, context=c"):
        read_records(squad(tmp_path), {"question": "q", "context": "c"})


def test_jsonl_rows_have_answers_in_either_shape(tmp_path: Path) -> None:
    rows = [
        {"context": CONTEXT, "answers": [{"text": "French", "answer_start": 13}]},
        {"context": CONTEXT, "answers": {"text": ["French", "is"], "answer_start": [13, 10]}},
        {"context": CONTEXT, "answers": {"text": [], "answer_start": []}},
        {"context": CONTEXT, "answers": []},
    ]
    path = write(tmp_path / "dev.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert [record.answers() for record in read_records(path)] == [
        [("French", 13)],
        [("French", 13), ("is", 10)],
        [],
        [],
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context": "a b"}, "expected a field 'answers', found only 'context'"),
        ({"context": "a b", "answers": None}, "expected a field 'answers'"),
        ({"answers": []}, "expected a field 'context', found only 'answers'"),
        ({"context": "a b", "answers": "a"}, "answers: expected a list of answers, found str"),
        ({"context": "a b", "answers": ["a"]}, "answers[0]: expected an object with 'text' and 'answer_start', found"),
        (
            {"context": "a b", "answers": {"text": ["a"]}},
            "answers: expected the lists 'text' and 'answer_start', found",
        ),
        (
            {"context": "a b", "answers": {"text": "a", "answer_start": 0}},
            "answers: expected the lists 'text' and 'answer_start'",
        ),
        (
            {"context": "a b", "answers": {"text": ["a"], "answer_start": [0, 2]}},
            "answers: expected as many in 'answer_start' as in 'text' (1), found 2",
        ),
        (
            {"context": "a b", "answers": {"text": ["a", "b"], "answer_start": [0, 1]}},
            "answers[1]: expected 'b' at character 1 of the context, found ' '",
        ),
        (
            {"context": "a b", "answers": [{"text": "a", "answer_start": False}]},
            "answers[0]: expected 'answer_start' to be a whole number from 0, found False",
        ),
    ],
)
def test_malformed_answers_are_reported(fields: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"some.jsonl:7: {message}")):
        record(**fields).answers()


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "questions", "impossible"),
    [
        ("squad_v1.1/train-articles.json.gz", 6261, 0),
        ("squad_v1.1/dev-articles.json.gz", 1271, 0),
        ("squad_v2.0/dev-v2.0.json.gz", 6078, 3168),
    ],
)
def test_public_squad_files(shared_data: Path, name: str, questions: int, impossible: int) -> None:
    """Counts as stated in the datasets' README."""
    records = read_records(shared_data / name)
    assert len(records) == questions == len({record.text("id") for record in records})
    assert all(record.text("question") and record.text("title") for record in records)
    assert sum(not record.answers() for record in records) == impossible
