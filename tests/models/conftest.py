import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bert_models import Checkpoint, open_checkpoint

from .toy import save_reference
from .toy_heads import Saved, reference


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, classifier_checkpoint: Path) -> Saved:
    """`saved(family, task)` returns a random transformers model, and its checkpoint with a tokenizer."""

    @cache
    def save(family: str, task: str, **changes: Any) -> tuple[Any, Checkpoint]:
        theirs = reference(family, task, **changes)
        folder = save_reference(theirs, tmp_path_factory.mktemp("reference") / family)
        shutil.copyfile(classifier_checkpoint / "tokenizer.json", folder / "tokenizer.json")
        return theirs, open_checkpoint(folder)

    return save
