"""The README: its code blocks run and its files exist; its tables: tests/bench/documentation."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .docs.code_blocks import run_page

EnterPageFolder = Callable[[Path], Path]

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.timeout(900)  # runs every command of the README, perhaps on a busy machine
def test_code_blocks_run_in_order(enter_page_folder: EnterPageFolder) -> None:
    ran = run_page(README, enter_page_folder(README))
    assert ran["sh"] >= 1
    assert ran["python"] >= 1


def test_named_files_exist_and_no_placeholder_is_left() -> None:
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:bench|tests|\.ci)/[\w./-]*\w", text))
    assert named
    assert not [name for name in named if not (README.parent / name).exists()]
    assert not re.search(r"@[A-Z_]+@", text)
