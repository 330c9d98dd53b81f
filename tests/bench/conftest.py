"""One real benchmark run over a toy bundle, shared by several test modules."""

import pickle
from pathlib import Path

import pytest

from bert_bench import Report, Settings, bench_bundle

from ..made_once import made_once, shared_folder

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
def toy_run(classifier_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, list[str]]:
    """A benchmark of the toy classifier on one thread, and its progress lines."""

    def run(folder: Path) -> None:
        stages: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bert_bench.workers.engine_pool._REST_S", 0.0)
            report = bench_bundle(classifier_bundle, settings=TOY_SETTINGS, progress=stages.append)
        folder.mkdir()
        (folder / "run.pickle").write_bytes(pickle.dumps((report, stages)))

    folder = made_once(shared_folder(tmp_path_factory, "bench") / "toy", run)
    report, stages = pickle.loads((folder / "run.pickle").read_bytes())
    return report, stages


@pytest.fixture(scope="session")
def toy_stages(toy_run: tuple[Report, list[str]]) -> list[str]:
    """Progress lines of the run behind `toy_report`."""
    return toy_run[1]


@pytest.fixture(scope="session")
def toy_report(toy_run: tuple[Report, list[str]]) -> Report:
    """A benchmark of the toy classifier."""
    return toy_run[0]
