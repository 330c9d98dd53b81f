"""The journal of a search: a killed search goes on with what it had written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_export.compression.journal import Journal, is_unfinished
from bert_models.errors import CompressionError

REQUEST = {"speedup": 2.0, "seed": 0}


def clock_of(times: list[float]) -> Callable[[], float]:
    return lambda: times[0]


def never() -> Any:
    raise AssertionError("the value is known")


def test_results_are_computed_once_in_all_processes(tmp_path: Path) -> None:
    now = [100.0]
    journal = Journal(tmp_path / "j.jsonl", REQUEST, clock_of(now))
    assert not journal.is_resumed
    now[0] = 130.0
    assert journal.remember("a", lambda: {"metric": 0.5}) == {"metric": 0.5}
    assert journal.remember("a", never) == {"metric": 0.5}
    now[0] = 7.0  # another process, with another clock
    again = Journal(tmp_path / "j.jsonl", REQUEST, clock_of(now))
    assert again.is_resumed
    assert again.knows("a")
    assert (again.count("a"), again.count("gate ")) == (1, 0)
    assert again.remember("a", never) == {"metric": 0.5}
    now[0] = 10.0
    assert again.elapsed_s == pytest.approx(33.0)


def test_a_line_that_was_not_written_whole_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path, REQUEST)
    journal.remember("a", lambda: 1)
    with path.open("a") as stream:
        stream.write('{"key": "b", "va')
    again = Journal(path, REQUEST)
    assert again.remember("a", never) == 1
    assert again.remember("b", lambda: 2) == 2
    assert Journal(path, REQUEST).remember("b", never) == 2


def test_only_an_interrupted_search_for_the_same_is_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    assert not is_unfinished(path, REQUEST)
    journal = Journal(path, REQUEST)
    journal.remember("a", lambda: 1)
    assert is_unfinished(path, REQUEST)
    assert not is_unfinished(path, {**REQUEST, "speedup": 3.0})
    journal.finish()
    assert not is_unfinished(path, REQUEST)
    journal.remember("b", lambda: 2)  # with more time
    assert is_unfinished(path, REQUEST)
    Journal(path, REQUEST).finish()
    assert not is_unfinished(path, REQUEST)
    path.write_bytes(b"no journal\n{}\n")
    assert not is_unfinished(path, REQUEST)


def test_another_search_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, REQUEST)
    with pytest.raises(CompressionError, match=r"another search \(speedup was 2.0, is now 3.0\)"):
        Journal(path, {**REQUEST, "speedup": 3.0})
    with pytest.raises(CompressionError, match=r"another search \(copies was not there, is now None\)"):
        Journal(path, {**REQUEST, "copies": None})  # of a version without it
    with pytest.raises(CompressionError, match=r"another search \(seed was 0, is now not there\)"):
        Journal(path, {"speedup": 2.0})


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"no journal\n{}\n", "j.jsonl:1: expected JSON"),
        (b"\xff\n{}\n", "j.jsonl:1: expected JSON"),
        (b"[]\n", r"j.jsonl:1: expected an object with key, elapsed_s and value, found \[\]; start over with --force"),
        (b'{"request": {"speedup": 2.0, "seed": 0}}\n{"key": "a"}\n', "j.jsonl:2: expected an object with key"),
    ],
)
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, contents: bytes, message: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(contents)
    with pytest.raises(CompressionError, match=message):
        Journal(path, REQUEST)
    assert path.read_bytes() == contents


def test_any_text_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, REQUEST).remember("a", lambda: "ä\u2028b")
    assert Journal(path, REQUEST).remember("a", never) == "ä\u2028b"
    assert path.read_bytes().isascii()
