"""The README's code blocks, run in order in one folder, with a toy model in the place of the real one."""

import re
import shlex
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner

from bert_export.cli import main

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer(README.read_text(encoding="utf-8"))]


def commands(block: str) -> list[list[str]]:
    """The `bert-export` commands of a shell block; the others (make, pip, docker) are not for a test to run."""
    lines = re.sub(r"\\\n\s*", " ", block).splitlines()
    words = [shlex.split(line, comments=True) for line in lines if not line.startswith("#")]
    return [line[1:] for line in words if line and line[0] == "bert-export"]


@pytest.fixture
def workplace(embedding_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the README's commands read."""
    shutil.copytree(embedding_checkpoint, tmp_path / "all-MiniLM-L6-v2")
    data = files("bert_bench").joinpath("data/support_intents")
    for name in ("train", "dev"):
        rows = data.joinpath(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows[:60]) + "\n", encoding="utf-8")
    (tmp_path / "messages.txt").write_text("my card is gone\nwhere is my money\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_code_blocks_run_in_order(workplace: Path) -> None:
    ran = {"sh": 0, "python": 0}
    names: dict[str, object] = {}
    for language, block in blocks():
        if language == "python":
            exec(compile(block, str(README), "exec"), names)
            ran["python"] += 1
            continue
        for arguments in commands(block):
            result = CliRunner().invoke(main, arguments)
            assert result.exit_code == 0, f"bert-export {shlex.join(arguments)}\n{result.output}"
            ran["sh"] += 1
    assert ran["sh"] >= 6
    assert ran["python"] >= 2


def test_every_file_that_is_named_exists() -> None:
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:bench|tests|\.ci)/[\w./-]*\w", text))
    assert named
    assert not [name for name in named if not (README.parent / name).exists()]
    assert not re.search(r"@[A-Z_]+@", text)


def test_every_command_is_shown() -> None:
    shown = {arguments[0] for language, block in blocks() if language == "sh" for arguments in commands(block)}
    assert shown == set(main.commands)
