"""One real benchmark run over a toy bundle, shared by several test modules."""

from pathlib import Path

import pytest

from bert_bench import Report, Settings, bench_bundle

TOY_SETTINGS = Settings(
    shapes=((1, 8), (2, 16), (1, 128)),
    text_tokens=(14, 40, 200),
    num_texts=12,
    rounds=3,
    burst_ms=2.0,
    starts=1,
    threads=1,
)
"""The smallest run with every part; one shape and one text exceed the toy bundle's 64 tokens."""


@pytest.fixture(scope="session")
def toy_settings() -> Settings:
    return TOY_SETTINGS


@pytest.fixture(scope="session")
def toy_stages() -> list[str]:
    """Progress lines of the run behind `toy_report`."""
    return []


@pytest.fixture(scope="session")
def toy_report(classifier_bundle: Path, toy_stages: list[str]) -> Report:
    """A benchmark of the toy classifier on one thread."""
    return bench_bundle(classifier_bundle, settings=TOY_SETTINGS, progress=toy_stages.append)
