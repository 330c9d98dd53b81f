"""Prediction and evaluation of every task on the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_runtime import load
from bert_runtime.tasks import (
    TextInput,
)

from ..task_bundles import TaskBundles
from .conftest import Run

TEXTS: dict[str, list[str]] = {
    "token-classification": ["my card is lost", "at the bank"],
    "question-answering": ["my card is at the bank.", "the rain is late"],
    "fill-mask": ["my [MASK] is lost", "[MASK] and [MASK]"],
    "next-sentence-prediction": ["my card", "the sun"],
    "replaced-token-detection": ["my card is lost", "hello"],
    "rerank": ["my card", "the sun"],
}

FILES: dict[str, tuple[str, str]] = {
    "token-classification": ("dev.conll", "my\tO\ncard\tB-city\n\t\nthe\tO\nbank\tI-city\n"),
    "question-answering": (
        "dev.json",
        json.dumps(
            {
                "data": [
                    {
                        "title": "a",
                        "paragraphs": [
                            {
                                "context": "my card is late",
                                "qas": [
                                    {"id": "1", "question": "what", "answers": [{"text": "card", "answer_start": 3}]}
                                ],
                            }
                        ],
                    }
                ]
            }
        ),
    ),
    "fill-mask": ("dev.jsonl", '{"text": "my [MASK] is lost", "label": "card"}\n'),
    "next-sentence-prediction": ("dev.tsv", "text\ttext_pair\tlabel\nmy card\tis lost\tis_next\n"),
    "replaced-token-detection": ("dev.conll", "my original\nrain replaced\n"),
    "rerank": ("dev.tsv", "text\ttext_pair\tlabel\nmy card\tis lost\t1\nmy card\tthe sun\t0\n"),
}


def asked(task: str) -> list[str]:
    """Return the options that supply the other text for tasks that read pairs."""
    pair = ["--pair", "is lost"]
    return {"question-answering": ["--question", "where"], "next-sentence-prediction": pair, "rerank": pair}.get(
        task, []
    )


def as_input(task: str, text: str) -> TextInput:
    pairs = {
        "question-answering": TextInput("where", text),
        "next-sentence-prediction": TextInput(text, "is lost"),
        "rerank": TextInput(text, "is lost"),
    }
    return pairs.get(task, TextInput(text))


@pytest.mark.parametrize("task", TEXTS)
def test_predict_equals_python_api(run: Run, task_bundles: TaskBundles, task: str) -> None:
    bundle = task_bundles[task]
    result = run("predict", bundle, *TEXTS[task], *asked(task), "--json")
    assert result.exit_code == 0, result.output
    model = load(bundle)
    expected = [json.loads(json.dumps(model(as_input(task, text)).to_dict())) for text in TEXTS[task]]
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert same(found, expected)
    lines = run("predict", bundle, *TEXTS[task], *asked(task)).stdout.splitlines()
    assert len(lines) == len(TEXTS[task])
    assert all(text in line for text, line in zip(TEXTS[task], lines, strict=True))


def same(found: Any, expected: Any) -> bool:
    """Return whether two JSON values are equal up to rounding, which depends on the batch."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(same(x, y) for x, y in zip(found, expected, strict=True))
    return bool(found == pytest.approx(expected, abs=1e-5)) if isinstance(expected, float) else found == expected


@pytest.mark.parametrize("task", TEXTS)
def test_evaluate_and_predict_a_file(run: Run, task_bundles: TaskBundles, task: str, tmp_path: Path) -> None:
    name, text = FILES[task]
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    result = run("evaluate", task_bundles[task], file, "--json")
    assert result.exit_code == 0, result.output
    assert load(task_bundles[task]).task.metric in json.loads(result.stdout)
    result = run("predict", task_bundles[task], "--input", file, "--output", tmp_path / "out.jsonl")
    assert result.exit_code == 0, result.output
    answers = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(answers) == (2 if task in ("token-classification", "rerank") else 1)


@pytest.mark.parametrize(
    ("task", "options", "check"),
    [
        ("token-classification", ["--aggregation", "none"], lambda found: all("entity" in entity for entity in found)),
        ("question-answering", ["--top-k", 3], lambda found: len(found) == 3),
        ("question-answering", ["--max-answer-tokens", 1], lambda found: len(found["answer"].split()) == 1),
        ("question-answering", ["--no-answer-threshold", -100], lambda found: found["answer"] == ""),
        ("question-answering", ["--no-answer", "--top-k", 2, "--n-best", 3], lambda found: len(found) == 2),
        ("question-answering", ["--max-answer-tokens", 10**9], lambda found: found["answer"]),
        ("token-classification", ["--bio", "--aggregation", "first"], lambda found: isinstance(found, list)),
        ("fill-mask", ["--top-k", 2], lambda found: len(found) == 2),
        ("fill-mask", ["--candidates", "card,bank"], lambda found: {x["token_str"] for x in found} == {"card", "bank"}),
        ("replaced-token-detection", ["--threshold", 0], lambda found: all(token["replaced"] for token in found)),
    ],
)
def test_options_of_a_task(
    run: Run, task_bundles: TaskBundles, task: str, options: list[object], check: Callable[[Any], bool]
) -> None:
    result = run("predict", task_bundles[task], TEXTS[task][0], *asked(task), *options, "--json")
    assert result.exit_code == 0, result.output
    assert check(json.loads(result.stdout))


def test_task_options_become_bundle_defaults(run: Run, task_bundles: TaskBundles, output_folder: Path) -> None:
    checkpoint = task_bundles.checkpoint("fill-mask")
    result = run(
        "export", checkpoint, output_folder, "--precision", "fp32", "--top-k", 2, "--candidates", "card,bank,rain"
    )
    assert result.exit_code == 0, result.output
    assert len(json.loads(run("predict", output_folder, "my [MASK]", "--json").stdout)) == 2
    assert "targets: 3: card, bank, rain" in run("inspect", output_folder).stdout


@pytest.mark.parametrize(
    ("task", "arguments", "exit_code", "message"),
    [
        ("fill-mask", ["my card"], 1, "input 0: expected at least one [MASK], found none"),
        ("fill-mask", ["my [MASK]", "--candidates", "cardbank"], 1, "found 'cardbank', which is 5 tokens"),
        ("fill-mask", ["my [MASK]", "--candidates", "card,,bank"], 2, "expected comma-separated names"),
        ("fill-mask", ["my [MASK]", "--top-k", "0"], 1, "expected top_k to be a whole number of at least 1, found 0"),
        ("fill-mask", ["my [MASK]", "--aggregation", "max"], 1, "fill-mask has the options top_k, candidates"),
        ("question-answering", ["my card"], 1, "input 0: expected a pair of texts, found one"),
        (
            "question-answering",
            ["my card", "--question", "so " * 60],
            1,
            "the first text has 120 tokens; expected at most",
        ),
        ("question-answering", ["--question", "where"], 2, "--question needs a TEXT"),
        ("question-answering", ["a", "--question", "b", "--pair", "c"], 2, "either --pair or --question"),
        ("question-answering", ["", "--question", "where"], 1, "input 0: the context has no tokens"),
        ("token-classification", ["my card", "--pair", "is lost"], 1, "input 0: expected one text, found a pair"),
        ("next-sentence-prediction", ["my card"], 1, "input 0: expected a pair of texts, found one text"),
        ("next-sentence-prediction", ["a", "--top-k", "2"], 1, "next-sentence-prediction has no options, found top_k"),
    ],
)
def test_invalid_inputs_and_options_are_reported(
    run: Run, task_bundles: TaskBundles, task: str, arguments: list[str], exit_code: int, message: str
) -> None:
    result = run("predict", task_bundles[task], *arguments)
    assert result.exit_code == exit_code
    assert message in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    ("task", "name", "text", "message"),
    [
        ("token-classification", "a.conll", "my\tB-x\n", "{file}:1: tags 'B-x' are not among the model's 3 labels"),
        ("token-classification", "a.conll", "my\ncard\n", "{file}:1: expected a field 'tags'"),
        (
            "question-answering",
            "a.jsonl",
            '{"question": "a", "context": "b", "answers": []}',
            "the question has no answer",
        ),
        ("fill-mask", "a.jsonl", '{"text": "my [MASK] [MASK]", "label": "card"}', "found 2 and 1"),
        ("replaced-token-detection", "a.conll", "my O\n", "expected tags original and replaced, found O"),
    ],
)
def test_rows_of_other_tasks_are_reported(
    run: Run, task_bundles: TaskBundles, tmp_path: Path, task: str, name: str, text: str, message: str
) -> None:
    file = tmp_path / name
    file.write_text(text + "\n", encoding="utf-8")
    result = run("evaluate", task_bundles[task], file)
    assert result.exit_code == 1
    assert message.format(file=file) in result.stderr


@pytest.mark.parametrize(
    ("opset", "message"), [(22, "opset 22 has no Attention operator"), (24, "captures opsets up to 23, found 24")]
)
def test_unsupported_opset_is_explained(
    run: Run, classifier_checkpoint: Path, output_folder: Path, opset: int, message: str
) -> None:
    result = run("export", classifier_checkpoint, output_folder, "--opset", opset)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(output_folder.iterdir())
