"""Errors about missing columns suggest those that the file has."""

import re
from pathlib import Path

import pytest

from bert_runtime.errors import DataError
from bert_runtime.records import Record, read_records


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("sentence,category", "--columns text=sentence,label=category"),
        ("id,Review,Sentiment", "--columns text=Review,label=Sentiment"),
        ("textt,label", "--columns text=textt"),
        ("category,label,txt", "--columns text=txt"),
        ("premise,hypothesis,label", "--columns text=premise,text_pair=hypothesis"),
        ("sentence1,sentence2,similarity", "--columns text=sentence1,text_pair=sentence2,score=similarity"),
        ("query,passage,answers", "--columns question=query,context=passage"),
        ("a,b", "--columns text=NAME,label=NAME"),
    ],
)
def test_unknown_headers_suggest_columns(tmp_path: Path, header: str, hint: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(f"{header}\n" + ",".join("x" for _ in header.split(",")) + "\n")
    with pytest.raises(DataError, match=re.escape(f"name them with {hint}, or by number if the file has no header")):
        read_records(path)


@pytest.mark.parametrize(
    ("fields", "read", "message"),
    [
        (
            {"text": "a", "category": "b"},
            Record.label,
            "found only 'text', 'category'; name it with --columns label=category",
        ),
        (
            {"sentence": "a", "label": "b"},
            Record.text,
            "found only 'sentence', 'label'; name it with --columns text=sentence",
        ),
        (
            {"text": "a", "genres": ["b"]},
            Record.labels,
            "a field 'labels', found only 'text', 'genres'; name it with --columns labels=genres",
        ),
        ({"words": ["a"]}, Record.tokens, "found only 'words'; name it with --columns tokens=words"),
        (
            {"text": "a", "labels": ["b"]},
            Record.label,
            "expected one 'label', found 'labels'; train a model of several labels per text with "
            "--problem-type multi_label",
        ),
    ],
)
def test_missing_fields_suggest_columns(fields: dict[str, object], read: object, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        read(Record(fields, Path("data.jsonl"), 1))  # type: ignore[operator]


@pytest.mark.parametrize("fields", [{"text": None, "sentence": "a"}, {"label": "a"}, {"colour": "red"}])
def test_nothing_is_suggested_without_reason(fields: dict[str, object]) -> None:
    """The field is there, all columns are fields of other names, or none is like it."""
    with pytest.raises(DataError, match=r"^data\.jsonl:1: expected a field 'text', found only ('\w+'(, )?)+$"):
        Record(fields, Path("data.jsonl"), 1).text()


def test_misspelt_column_names_the_closest() -> None:
    with pytest.raises(DataError, match=r"found id, sentence; the closest to 'sentense' is 'sentence'$"):
        Record({"id": 1, "sentence": "a"}, Path("data.jsonl"), 1).rename_columns({"text": "sentense"})
