"""The README's code blocks, run in order in one folder, with a toy model in the place of the real one."""

import json
import re
import shlex
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import click
import pytest
import torch
from click.testing import CliRunner

from bert_bench import Settings
from bert_bench.cli import main as bench_main
from bert_bench.experiments import fine_tuning, fine_tuning_vs_transformers, pretraining, training_speed
from bert_export.cli import main
from bert_export.support import support_table
from bert_models import EncoderConfig, TaskModel, save_model
from bert_runtime.tasks import SentenceEmbedding

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer(README.read_text(encoding="utf-8"))]


PROGRAMS = {"bert-export": main, "bert-bench": bench_main}


def commands(block: str) -> list[list[str]]:
    """The commands of this project in a shell block; the others (make, pip, docker) are not for a test to run."""
    lines = re.sub(r"\\\n\s*", " ", block).splitlines()
    words = [shlex.split(line, comments=True) for line in lines if not line.startswith("#")]
    return [line for line in words if line and line[0] in PROGRAMS]


def tagged(city: str) -> str:
    """A sentence in CoNLL's format."""
    first, *more = city.split()
    words = [("refund", "O"), ("to", "O"), (first, "B-city"), *((word, "I-city") for word in more), (".", "O")]
    return "".join(f"{word} {tag}\n" for word, tag in words)


def squad(cities: list[str]) -> str:
    """A question about each city, and one that has no answer."""
    context = "The train goes to {}. It is late."
    questions = [
        {
            "context": context.format(city),
            "qas": [
                {"id": city, "question": "where to?", "answers": [{"text": city, "answer_start": context.index("{")}]},
                {"id": f"not {city}", "question": "who pays?", "answers": [], "is_impossible": True},
            ],
        }
        for city in cities
    ]
    return json.dumps({"version": "v2.0", "data": [{"title": "trains", "paragraphs": questions}]})


@pytest.fixture
def workplace(toy_config: EncoderConfig, toy_vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the README's commands read."""
    torch.manual_seed(7)
    model = TaskModel(replace(toy_config, num_layers=6), SentenceEmbedding(dimensions=toy_config.hidden_size))
    (tmp_path / "all-MiniLM-L6-v2").mkdir()
    save_model(model, tmp_path / "all-MiniLM-L6-v2", tokenizer_from=toy_vocab)
    data = files("bert_bench").joinpath("data/support_intents")
    for name in ("train", "dev"):
        rows = data.joinpath(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows[:60]) + "\n", encoding="utf-8")
    for name, cities in (("train", ["Paris", "New York", "Rome", "Oslo"]), ("dev", ["Bern", "Paris"])):
        (tmp_path / f"{name}.conll").write_text("\n".join(map(tagged, cities)), encoding="utf-8")
        (tmp_path / f"{name}-squad.json").write_text(squad(cities), encoding="utf-8")
    recipe = re.search(r"^```yaml\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert recipe
    (tmp_path / "recipe.yaml").write_text(recipe[1], encoding="utf-8")
    (tmp_path / "messages.txt").write_text("my card is gone\nwhere is my money\n", encoding="utf-8")
    (tmp_path / "corpus.txt").write_text("my card is gone\nwhere is my money\nis my card lost\n", encoding="utf-8")
    few = Settings(
        shapes=((1, 16),), text_tokens=(14,), num_texts=8, rounds=1, burst_ms=2.0, loads=1, peak_s=0.01, callers_s=0.1
    )
    for name in ("quick", "comparison"):
        monkeypatch.setattr(Settings, name, lambda **options: few)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.timeout(900)  # every command of the README, on a machine that may be busy
def test_code_blocks_run_in_order(workplace: Path) -> None:
    ran = {"sh": 0, "python": 0}
    names: dict[str, object] = {}
    for language, block in blocks():
        if language == "python":
            exec(compile(block, str(README), "exec"), names)
            ran["python"] += 1
            continue
        for program, *arguments in commands(block):
            result = CliRunner().invoke(PROGRAMS[program], arguments)
            assert result.exit_code == 0, f"{program} {shlex.join(arguments)}\n{result.output}"
            ran["sh"] += 1
    assert ran["sh"] >= 6
    assert ran["python"] >= 2


def test_the_table_of_what_is_supported_is_the_registries() -> None:
    assert f"\n\n{support_table()}\n\n" in README.read_text(encoding="utf-8")


def test_every_file_that_is_named_exists() -> None:
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:bench|tests|\.ci)/[\w./-]*\w", text))
    assert named
    assert not [name for name in named if not (README.parent / name).exists()]
    assert not re.search(r"@[A-Z_]+@", text)


@pytest.mark.parametrize(
    ("experiment", "results"),
    [
        (fine_tuning, "fine-tunes"),
        (fine_tuning_vs_transformers, "fine-tuning-peers"),
        (pretraining, "pretraining"),
        (training_speed, "training-speed.json"),
    ],
)
def test_the_results_are_those_of_the_files(experiment: ModuleType, results: str) -> None:
    assert experiment.results_table(README.parent / "bench" / "results" / results) in README.read_text(encoding="utf-8")


def test_every_command_is_shown() -> None:
    shown = {tuple(words[:2]) for language, block in blocks() if language == "sh" for words in commands(block)}
    assert shown == {
        (program, command)
        for program, group in PROGRAMS.items()
        for command in group.list_commands(click.Context(group))
    }
