"""`bert-export predict`: inputs from arguments, files and stdin, results on stdout or in a file."""

import contextlib
import errno
import gzip
import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from bert_runtime import Classification, Embedding, Model, load

Run = Callable[..., Result]

TEXTS = ["hello there", "where is my card?", "bye", "déjà vu 😀"]

COMMAND = [sys.executable, "-c", "from bert_export.cli import main; main()"]


@pytest.fixture(scope="module")
def model(classifier_bundle: Path) -> Model:
    return load(classifier_bundle, precision="fp32")


@pytest.fixture(scope="module")
def lines(model: Model) -> list[str]:
    """The lines that predict prints for `TEXTS`."""
    return [f"{(result := model(text)).label}\t{result.score:.4f}\t{text}" for text in TEXTS]


@pytest.fixture(scope="module")
def answers(model: Model) -> list[dict[str, Any]]:
    """The JSON values of the predictions for `TEXTS`."""
    return [model(text).to_dict() for text in TEXTS]


def same(found: str, answers: list[dict[str, Any]]) -> bool:
    """Return whether JSON lines equal these predictions, up to rounding, which depends on the batch."""
    values = [json.loads(line) for line in found.splitlines()]
    return [value["label"] for value in values] == [answer["label"] for answer in answers] and [
        value["score"] for value in values
    ] == pytest.approx([answer["score"] for answer in answers], abs=1e-5)


def test_one_output_line_per_argument(run: Run, classifier_bundle: Path, lines: list[str]) -> None:
    result = run("predict", classifier_bundle, *TEXTS, "--precision", "fp32")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == lines


def test_embedding_output_shows_first_values(run: Run, embedding_bundle: Path) -> None:
    result = run("predict", embedding_bundle, "hello", "--precision", "fp32")
    answer = load(embedding_bundle, precision="fp32")("hello")
    assert isinstance(answer, Embedding)
    shown = ", ".join(f"{x:.4f}" for x in answer.vector[:4])
    assert (result.exit_code, result.stdout) == (0, f"[{shown}, …] (32)\thello\n")


def test_json_has_the_shape_of_the_pipeline(run: Run, classifier_bundle: Path, embedding_bundle: Path) -> None:
    classified = json.loads(run("predict", classifier_bundle, "hello", "--json").stdout)
    assert list(classified) == ["label", "score"]
    embedded = json.loads(run("predict", embedding_bundle, "hello", "--json", "--precision", "fp32").stdout)
    assert list(embedded) == ["embedding"]
    answer = load(embedding_bundle, precision="fp32")("hello")
    assert isinstance(answer, Embedding)
    assert np.array(embedded["embedding"], dtype=np.float32).tolist() == answer.vector.tolist()


def test_pairs(run: Run, classifier_bundle: Path, model: Model) -> None:
    result = run("predict", classifier_bundle, "hello", "bye", "--pair", "my card", "--precision", "fp32")
    expected = [model((text, "my card")) for text in ("hello", "bye")]
    assert result.stdout.splitlines() == [
        f"{answer.label}\t{answer.score:.4f}\t{text} | my card"
        for answer, text in zip(expected, ("hello", "bye"), strict=True)
    ]


FILES = {
    "data.txt": "\n".join(TEXTS) + "\n",
    "data.jsonl": "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS)),
    "data.csv": "text,other\n" + "".join(f'"{text}",x\n' for text in TEXTS),
    "data.tsv.gz": "other\ttext\n" + "".join(f"x\t{text}\n" for text in TEXTS),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_every_format(
    run: Run, classifier_bundle: Path, answers: list[dict[str, Any]], tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(FILES[name].encode()) if name.endswith(".gz") else FILES[name].encode())
    result = run("predict", classifier_bundle, "--input", path, "--json", "--precision", "fp32")
    assert (result.exit_code, result.stderr) == (0, "")
    assert same(result.stdout, answers)


@pytest.mark.parametrize(
    ("content", "columns"),
    [("n,sentence\n" + "".join(f"1,{text}\n" for text in TEXTS), "text=sentence")]
    + [("".join(f"1,{text}\n" for text in TEXTS), columns) for columns in ("text=1", " text = 1 ")],
)
def test_columns_option(
    run: Run, classifier_bundle: Path, answers: list[dict[str, Any]], tmp_path: Path, content: str, columns: str
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(content, encoding="utf-8")
    options = ["--columns", columns, "--json", "--precision", "fp32"]
    assert same(run("predict", classifier_bundle, "--input", path, *options).stdout, answers)


def test_pairs_from_a_file(run: Run, classifier_bundle: Path, model: Model, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "hello", "text_pair": "bye"}\n{"text": "hello", "text_pair": ""}\n{"text": "hello"}\n')
    result = run("predict", classifier_bundle, "--input", path, "--json", "--precision", "fp32")
    assert same(result.stdout, [model(value).to_dict() for value in (("hello", "bye"), "hello", "hello")])


def test_multi_line_text_is_printed_on_one_line(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"text": "hello\nthere\r\n\tmy card"}) + '\n{"text": "bye"}\n')
    result = run("predict", classifier_bundle, "--input", path)
    assert len(result.stdout.splitlines()) == 2
    assert all(line.count("\t") == 2 for line in result.stdout.splitlines())


def test_output_file(run: Run, classifier_bundle: Path, answers: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("what was there before")
    result = run("predict", classifier_bundle, *TEXTS, "--output", tmp_path / "out.jsonl", "--precision", "fp32")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines()[-1] == f"wrote 4 results to {tmp_path / 'out.jsonl'}"
    assert same((tmp_path / "out.jsonl").read_text(encoding="utf-8"), answers)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_output_follows_symbolic_links(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("what was there before")
    (tmp_path / "out.jsonl").chmod(0o600)
    (tmp_path / "link").symlink_to("out.jsonl")
    assert run("predict", classifier_bundle, "hello", "--output", tmp_path / "link").exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert "label" in (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == 0o600


def test_columns_of_other_tasks_are_ignored(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    """Columns that only other tasks read do no harm."""
    row = {"text": "hello there", "question": "bye", "context": "where is my card?", "tokens": 3, "label": "a"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    found = run("predict", classifier_bundle, "--input", tmp_path / "rows.jsonl", "--precision", "fp32")
    assert found.stdout == run("predict", classifier_bundle, "hello there", "--precision", "fp32").stdout


def test_embedding_a_file_of_pairs_is_an_error(run: Run, embedding_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,text_pair,score\nhello,bye,0.5\n")
    found = run("predict", embedding_bundle, "--input", tmp_path / "rows.csv")
    assert found.exit_code == 1
    assert "rows.csv:2: expected one text, found text and text_pair, which sentence-embedding reads" in found.stderr


def _bad_row(folder: Path) -> Path:
    """Write more rows than are read ahead, the last of them malformed."""
    path = folder / "data.jsonl"
    path.write_text('{"text": "hello"}\n' * 1500 + '{"text": 5}\n')
    return path


def test_malformed_row_keeps_the_results_before_it(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    path = _bad_row(tmp_path)
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "out.jsonl"
    partial = output.with_name("out.jsonl.partial")
    output.write_text("what was there before")
    result = run("predict", classifier_bundle, "--input", path, "--output", output)
    assert result.exit_code == 1
    assert result.stderr.endswith(
        f"Error: {path}:1501: expected 'text' to be a string, found int; the results before it are in {partial}\n"
    )
    assert output.read_text() == "what was there before"
    assert len(partial.read_text().splitlines()) == 1500
    assert sorted(output.parent.iterdir()) == [output, partial]


def test_interrupted_predict_leaves_no_output(
    run: Run, classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Model, "stream", interrupt)
    result = run("predict", classifier_bundle, *TEXTS, "--output", tmp_path / "out.jsonl")
    assert result.exit_code == 1
    assert "Aborted!" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_results_before_any_error_are_kept(
    run: Run, classifier_bundle: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    answer = model("hello")  # before `stream`, which it calls, is another

    def fail_late(*_arguments: Any, **_options: Any) -> Iterator[Any]:
        yield answer
        raise error

    monkeypatch.setattr(Model, "stream", fail_late)
    result = run("predict", classifier_bundle, *TEXTS, "--output", tmp_path / "out.jsonl")
    assert result.exit_code == 1
    partial = tmp_path / "out.jsonl.partial"
    assert f"the results until then are in {partial}\n" in result.stderr
    assert list(tmp_path.iterdir()) == [partial]
    assert len(partial.read_text().splitlines()) == 1


@pytest.mark.parametrize("output", ["data.jsonl", "folder/../data.jsonl", "link.jsonl", "hard.jsonl"])
def test_the_input_is_not_replaced(run: Run, classifier_bundle: Path, tmp_path: Path, output: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "hello"}\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.jsonl").symlink_to(path)
    (tmp_path / "hard.jsonl").hardlink_to(path)
    result = run("predict", classifier_bundle, "--input", path, "--output", tmp_path / output)
    assert result.exit_code == 2
    assert "is the --input file, which would be lost; name another file" in " ".join(result.stderr.split())
    assert path.read_text() == '{"text": "hello"}\n'


def test_unwritable_output_is_reported(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "absent" / "out.jsonl", tmp_path / "folder", tmp_path / "file" / "out.jsonl"):
        result = run("predict", classifier_bundle, "hello", "--output", output)
        assert result.exit_code == 1
        assert f"Error: {output}: cannot be written" in result.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_output_to_a_pipe_does_not_replace_it(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    """Run by root, `--output /dev/null` must not replace /dev/null by a file; tested with a named pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()), daemon=True)
    reader.start()
    result = run("predict", classifier_bundle, "hello", "--output", pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with contextlib.suppress(OSError):  # where the command refused, the reader still waits for a writer
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    reader.join(10)
    assert result.exit_code != 0 or "label" in received[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hello", "--input", "data.txt"], "give either TEXT or --input, not both"),
        (["--input", "data.txt", "--pair", "bye"], "--pair needs a TEXT"),
        (["hello", "--precision", "fp4"], "'fp4' is not one of 'auto', 'fp32', 'fp16', 'int8'"),
        (["hello", "--threads", "0"], "0 is not in the range"),
        (["hello", "--columns", "text=a"], "--columns names the columns of a file: give that with --input"),
        (["--input", "data.csv", "--columns", "text"], "expected pairs such as text=sentence,label=category, found"),
        (["--input", "data.csv", "--columns", "text="], "expected pairs such as"),
        (["--input", "data.csv", "--columns", "=a,text=b"], "expected pairs such as"),
        (["hello", "--shape"], "No such option"),
    ],
)  # fmt: skip
def test_wrong_usage(run: Run, classifier_bundle: Path, arguments: list[str], message: str) -> None:
    result = run("predict", classifier_bundle, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: " in result.stderr
    assert message in re.sub(r"\s+", " ", result.stderr)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo-terminals")
def test_terminal_as_stdin_is_wrong_usage(classifier_bundle: Path) -> None:
    """Otherwise the command would silently wait for input."""
    controller, terminal = os.openpty()
    try:
        command = [*COMMAND, "predict", str(classifier_bundle)]
        done = subprocess.run(command, stdin=terminal, capture_output=True, text=True, timeout=60, check=False)
    finally:
        os.close(controller)
        os.close(terminal)
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected a TEXT, --input FILE, or texts on stdin" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.txt", "", ": expected at least one row, found none"),
        ("data.jsonl", "{}\n", ":1: expected a field 'text', found only nothing"),
        ("data.csv", "sentence\nhello\n", ":1: expected a header with a column 'text'"),
        ("data.xlsx", "hello", ": expected a file that ends in .jsonl, .csv, .tsv, .txt"),
        ("data.parquet", "PAR1", ": expected a file that ends in .jsonl, .csv, .tsv, .txt, .md, .conll"),
        ("absent.csv", None, ": no such file"),
    ],
)
def test_invalid_input_files_are_reported(
    run: Run, classifier_bundle: Path, tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    result = run("predict", classifier_bundle, "--input", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: {path}{message}")


def test_undecodable_arguments_are_refused(run: Run, classifier_bundle: Path) -> None:
    """Python decodes invalid UTF-8 on the command line to lone surrogates."""
    result = run("predict", classifier_bundle, "caf\udce9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: input 0: the text holds a lone surrogate (U+DCE9) at character 3")


def test_closed_stdout_pipe_is_not_an_error(classifier_bundle: Path, tmp_path: Path) -> None:
    """`bert-export predict … | head -1`."""
    path = tmp_path / "data.txt"
    path.write_text("hello there\n" * 20_000)
    process = subprocess.Popen(
        [*COMMAND, "predict", str(classifier_bundle), "--input", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().endswith("hello there\n")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) in (0, 1)


def test_precision_option_selects_int8(run: Run, classifier_bundle: Path) -> None:
    answer = load(classifier_bundle, precision="int8")("where is my card?")
    assert isinstance(answer, Classification)
    found = json.loads(run("predict", classifier_bundle, "where is my card?", "--json", "--precision", "int8").stdout)
    assert found == answer.to_dict()
    assert found["score"] != load(classifier_bundle, precision="fp32")("where is my card?").score
