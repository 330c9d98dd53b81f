"""The README: it fits one reading, its code blocks run, and the files that it names exist."""

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
    assert ran["sh"] >= 5
    assert ran["python"] >= 1


def test_length() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_links_lead_to_files() -> None:
    text = README.read_text(encoding="utf-8")
    targets = set(re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text))
    assert len(targets) > 20
    assert not [target for target in targets if not (README.parent / target).exists()]
