from dataclasses import replace
from pathlib import Path

import pytest

from bert_models import EncoderConfig

from .teachers import MASK, TEACHERS, save_checkpoint


@pytest.fixture
def teacher(request: pytest.FixtureRequest, toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path) -> Path:
    """A teacher of four layers; the parameter is a key of `TEACHERS`."""
    family, task = TEACHERS[request.param]
    more = {"embedding_size": None} if family == "bert" else {"embedding_size": 16}
    config = replace(toy_config, family=family, num_layers=4, initializer_range=0.1, **more)
    return save_checkpoint(tmp_path / "teacher", toy_vocab, config, task)


@pytest.fixture
def other_tokenizer(toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path) -> Path:
    """A checkpoint of another family, width and vocabulary."""
    words = (toy_vocab / "vocab.txt").read_text(encoding="utf-8").split("\n")
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab" / "vocab.txt").write_text("\n".join([*words[:5], *reversed(words[5:-1])]) + "\n")
    config = replace(toy_config, family="distilbert", hidden_size=16, num_heads=2, type_vocab_size=0)
    return save_checkpoint(tmp_path / "other", tmp_path / "vocab", config, MASK)
