"""Damaged data files of every format, compressed and not."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_runtime.errors import BertError
from bert_runtime.records import FORMATS, Record, iter_records

from .mutations import as_json, mutated_bytes, mutated_json, raises_only_typed_errors

SQUAD = {
    "data": [
        {
            "title": "T",
            "paragraphs": [
                {
                    "context": "Paris is in France.",
                    "qas": [
                        {
                            "id": "1",
                            "question": "Where?",
                            "is_impossible": False,
                            "answers": [{"text": "France", "answer_start": 12}],
                        }
                    ],
                }
            ],
        }
    ]
}
ROW = {"text": "a", "text_pair": "b", "label": "x", "labels": ["x"], "score": 0.5, "tokens": ["a"], "tags": ["B"]}
SAMPLES: dict[str, bytes] = {
    ".jsonl": as_json(ROW) + b"\n" + as_json({"question": "q", "context": "c", "answers": []}) + b"\n",
    ".csv": b'text,label,score\n"a, b",x,0.5\n"two\nlines",y,1\n',
    ".tsv": b'text\tlabel\na "b\tx\n',
    ".txt": "one\n\ntwo é\n".encode(),
    ".md": b"# one\n",
    ".conll": b"-DOCSTART- O\n\nEU B-ORG\nrejects O\n\n",
    ".conllu": b"# c\n1\tA\ta\tDET\t_\t_\t0\t_\t_\t_\n1-2\tAb\t_\t_\t_\t_\t_\t_\t_\t_\n\n",
    ".json": as_json(SQUAD),
}
FIELDS: tuple[Callable[[Record], object], ...] = (
    *(Record.text, Record.label, Record.labels, Record.tokens, Record.tags, Record.answers),
    *(lambda record: record.number("score"), lambda record: record.optional_text("text_pair")),
)


def _read(path: Path, contents: bytes) -> None:
    path.write_bytes(contents)
    for record in iter_records(path):
        for field in FIELDS:
            try:
                field(record)
            except BertError:
                continue


def test_every_format_has_a_sample() -> None:
    assert SAMPLES.keys() == set(FORMATS)


@given(
    st.sampled_from(sorted(SAMPLES)).flatmap(lambda suffix: st.tuples(st.just(suffix), mutated_bytes(SAMPLES[suffix])))
)
def test_bytes(tmp_path_factory: pytest.TempPathFactory, sample: tuple[str, bytes]) -> None:
    suffix, contents = sample
    folder = tmp_path_factory.getbasetemp()
    raises_only_typed_errors(lambda: _read(folder / f"fuzz{suffix}", contents))
    raises_only_typed_errors(lambda: _read(folder / f"fuzz{suffix}.gz", gzip.compress(contents, mtime=0)))


@given(mutated_bytes(gzip.compress(SAMPLES[".jsonl"] * 20, mtime=0)))
def test_compressed_bytes(tmp_path_factory: pytest.TempPathFactory, contents: bytes) -> None:
    raises_only_typed_errors(lambda: _read(tmp_path_factory.getbasetemp() / "fuzz.jsonl.gz", contents))


@given(mutated_json(SQUAD))
def test_squad(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    raises_only_typed_errors(lambda: _read(tmp_path_factory.getbasetemp() / "fuzz.json", as_json(value)))


@given(mutated_json(ROW))
def test_jsonl(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    contents = json.dumps(value).encode() + b"\n"
    raises_only_typed_errors(lambda: _read(tmp_path_factory.getbasetemp() / "fuzz.jsonl", contents))
