"""One real benchmark run over a toy bundle, which several modules look at."""

from pathlib import Path

import pytest

from bert_bench import Report, Settings, bench_bundle

TOY_SETTINGS = Settings(
    shapes=((1, 8), (2, 16), (1, 128)),
    text_tokens=(14, 40, 200),
    num_texts=12,
    rounds=3,
    burst_ms=2.0,
    loads=1,
    threads=1,
)
"""As little as still has every part: the toy bundle reads 64 tokens, so one shape and one text are too long for it."""


@pytest.fixture(scope="session")
def toy_settings() -> Settings:
    return TOY_SETTINGS


@pytest.fixture(scope="session")
def toy_stages() -> list[str]:
    """What the run behind `toy_report` said on its way."""
    return []


@pytest.fixture(scope="session")
def toy_report(classifier_bundle: Path, toy_stages: list[str]) -> Report:
    """A benchmark of the toy classifier on one thread."""
    return bench_bundle(classifier_bundle, settings=TOY_SETTINGS, progress=toy_stages.append)
