"""The README: its code blocks run and its files exist; its tables: tests/bench/documentation."""

import json
import re
import shlex
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

from bert_bench import Settings
from bert_bench.cli import main as bench_main
from bert_export.cli import main
from bert_models import EncoderConfig, TaskModel, save_model
from bert_runtime.tasks import SentenceEmbedding

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


PROGRAMS = {"bert-export": main, "bert-bench": bench_main}


def code_blocks() -> list[tuple[str, str]]:
    """Language and text of the code blocks, in order."""
    return [(match[1], match[2]) for match in BLOCK.finditer(README.read_text(encoding="utf-8"))]


def commands(block: str) -> list[list[str]]:
    """Split a shell block into the commands of this project; others (make, pip, docker) are left out."""
    lines = re.sub(r"\\\n\s*", " ", block).splitlines()
    words = [shlex.split(line, comments=True) for line in lines if not line.startswith("#")]
    return [command for command in words if command and command[0] in PROGRAMS]


def conll_sentence(city: str) -> str:
    """Return a sentence with a tagged city in CoNLL format."""
    first, *more = city.split()
    words = [("refund", "O"), ("to", "O"), (first, "B-city"), *((word, "I-city") for word in more), (".", "O")]
    return "".join(f"{word} {tag}\n" for word, tag in words)


def squad_file(cities: list[str]) -> str:
    """Return a SQuAD file with a question about each city and one without an answer."""
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
def readme_folder(toy_config: EncoderConfig, toy_vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with the files that the README's commands read: a toy checkpoint and a few lines of data."""
    torch.manual_seed(7)
    model = TaskModel(replace(toy_config, num_layers=6), SentenceEmbedding(dimensions=toy_config.hidden_size))
    (tmp_path / "all-MiniLM-L6-v2").mkdir()
    save_model(model, tmp_path / "all-MiniLM-L6-v2", tokenizer_from=toy_vocab)
    data = files("bert_bench").joinpath("data/support_intents")
    for name in ("train", "dev"):
        rows = data.joinpath(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows[:60]) + "\n", encoding="utf-8")
    for name, cities in (("train", ["Paris", "New York", "Rome", "Oslo"]), ("dev", ["Bern", "Paris"])):
        (tmp_path / f"{name}.conll").write_text("\n".join(map(conll_sentence, cities)), encoding="utf-8")
        (tmp_path / f"{name}-squad.json").write_text(squad_file(cities), encoding="utf-8")
    recipe = re.search(r"^```yaml\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert recipe
    (tmp_path / "recipe.yaml").write_text(recipe[1], encoding="utf-8")
    (tmp_path / "messages.txt").write_text("my card is gone\nwhere is my money\n", encoding="utf-8")
    (tmp_path / "corpus.txt").write_text("my card is gone\nwhere is my money\nis my card lost\n", encoding="utf-8")
    short = Settings(
        shapes=((1, 16),),
        text_tokens=(14,),
        num_texts=8,
        rounds=1,
        burst_ms=2.0,
        starts=1,
        gemm_peak_s=0.01,
        clients_s=0.1,
    )
    for name in ("quick", "comparison"):
        monkeypatch.setattr(Settings, name, lambda **options: short)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.timeout(900)  # runs every command of the README, perhaps on a busy machine
def test_code_blocks_run_in_order(readme_folder: Path) -> None:
    ran = {"sh": 0, "python": 0}
    namespace: dict[str, object] = {}
    for language, block in code_blocks():
        if language == "python":
            exec(compile(block, str(README), "exec"), namespace)
            ran["python"] += 1
            continue
        for program, *arguments in commands(block):
            result = CliRunner().invoke(PROGRAMS[program], arguments)
            assert result.exit_code == 0, f"{program} {shlex.join(arguments)}\n{result.output}"
            ran["sh"] += 1
    assert ran["sh"] >= 6
    assert ran["python"] >= 2


def test_named_files_exist_and_no_placeholder_is_left() -> None:
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:bench|tests|\.ci)/[\w./-]*\w", text))
    assert named
    assert not [name for name in named if not (README.parent / name).exists()]
    assert not re.search(r"@[A-Z_]+@", text)


def test_every_command_is_in_a_code_block() -> None:
    shown = {tuple(words[:2]) for language, block in code_blocks() if language == "sh" for words in commands(block)}
    assert shown == {
        (program, command)
        for program, group in PROGRAMS.items()
        for command in group.list_commands(click.Context(group))
    }
