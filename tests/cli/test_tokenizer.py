"""`bert-export tokenizer`: output, options and errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bert_export.cli.tokenizer import tokenizer
from bert_models.tokenizer_files import TOKENIZER_KINDS, read_tokenizer

Run = Callable[..., Result]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("I lost my card\nwhere is my card?\nI lost my money\n")
    return path


def test_kind_option_offers_every_tokenizer_kind() -> None:
    (kind,) = (option.type for option in tokenizer.params if option.name == "kind")
    assert tuple(kind.choices) == TOKENIZER_KINDS  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 36), ("bpe", 270), ("unigram", 24)])
def test_train_each_tokenizer_kind(run: Run, corpus: Path, output_folder: Path, kind: str, size: int) -> None:
    result = run("tokenizer", corpus, "--kind", kind, "--vocab-size", size, "--output", output_folder / "out")
    assert (result.exit_code, result.stdout) == (0, f"{size} tokens, from 3 texts\nwrote {output_folder / 'out'}\n")
    assert f"reading {corpus}\n" in result.stderr
    family = {"wordpiece": "bert", "bpe": "roberta", "unigram": "albert"}[kind]
    assert read_tokenizer(output_folder / "out", family).get_vocab_size() == size


def test_json_output(run: Run, corpus: Path, output_folder: Path) -> None:
    result = run("tokenizer", corpus, "--kind", "bpe", "--vocab-size", 270, "--output", output_folder / "out", "--json")
    assert json.loads(result.stdout) == {
        "kind": "bpe",
        "family": "roberta",
        "tokenizer_class": "RobertaTokenizer",
        "vocab_size": 270,
        "requested_vocab_size": 270,
        "special_tokens": {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4},
        "texts": 3,
    }


def test_vocabulary_smaller_than_requested_is_reported(run: Run, corpus: Path, output_folder: Path) -> None:
    result = run("tokenizer", corpus, "--kind", "wordpiece", "--vocab-size", 900, "--output", output_folder / "out")
    assert result.exit_code == 0
    found = read_tokenizer(output_folder / "out", "bert").get_vocab_size()
    assert result.stdout.startswith(f"{found} tokens of the 900 requested: the corpus has no more, from 3 texts\n")


def test_tokenizer_options(run: Run, corpus: Path, output_folder: Path) -> None:
    rows = "".join(json.dumps({"body": line}) + "\n" for line in corpus.read_text().splitlines())
    (output_folder / "rows.jsonl").write_text(rows)
    vocabularies: dict[str, Any] = {}
    for name, options in (
        ("lower", []),
        ("cased", ["--cased"]),
        ("often", ["--min-frequency", 3]),
    ):
        arguments = [
            "--kind",
            "wordpiece",
            "--vocab-size",
            900,
            "--output",
            output_folder / name,
            "--columns",
            "text=body",
        ]
        assert run("tokenizer", output_folder / "rows.jsonl", *arguments, *options).exit_code == 0
        vocabularies[name] = read_tokenizer(output_folder / name, "bert").get_vocab()
    assert "i" in vocabularies["lower"]
    assert "I" not in vocabularies["lower"]
    assert "I" in vocabularies["cased"]
    assert len(vocabularies["often"]) < len(vocabularies["lower"])


def test_existing_tokenizer_is_replaced_only_with_force(run: Run, corpus: Path, output_folder: Path) -> None:
    arguments = ["tokenizer", corpus, "--kind", "bpe", "--vocab-size", 270, "--output", output_folder / "out"]
    assert run(*arguments).exit_code == 0
    again = run(*arguments)
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr == f"Error: {output_folder / 'out'}: a tokenizer is already there; replace it with --force\n"
    assert run(*arguments, "--force").exit_code == 0
    (output_folder / "out" / "config.json").write_text("{}")
    spared = run(*arguments, "--force")
    assert (
        spared.stderr
        == f"Error: {output_folder / 'out'}: exists and is not a tokenizer folder; choose another output folder\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Missing argument 'CORPUS...'"),
        (["c.txt"], "Missing option '--kind'"),
        (["c.txt", "--kind", "char"], "'char' is not one of 'wordpiece', 'bpe', 'unigram'"),
        (["c.txt", "--kind", "bpe", "--vocab-size", "0"], "0 is not in the range x>=1"),
    ],
)
def test_wrong_usage(run: Run, options: list[str], message: str) -> None:
    result = run("tokenizer", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("kind", "size", "content", "message"),
    [
        ("bpe", 270, None, "corpus.txt: no such file"),
        ("bpe", 270, b"\n", "corpus.txt: expected at least one row, found none"),
        ("bpe", 270, b"caf\xe9\n", "corpus.txt:1: expected UTF-8 text, found byte 0xe9"),
        ("bpe", 200, b"a\n", "at least 261 (5 special tokens and 256 bytes), found 200"),
        ("unigram", 5, b"a\n", "at least 7 (5 special tokens and 2 characters), found 5"),
    ],
)
def test_invalid_corpora_and_sizes_are_reported(
    run: Run, corpus: Path, output_folder: Path, kind: str, size: int, content: bytes | None, message: str
) -> None:
    corpus.unlink()
    if content is not None:
        corpus.write_bytes(content)
    result = run("tokenizer", corpus, "--kind", kind, "--vocab-size", size, "--output", output_folder / "out")
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert not (output_folder / "out").exists()
