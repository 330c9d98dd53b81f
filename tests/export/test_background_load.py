"""CPU time of other processes while latencies are measured."""

from pathlib import Path

import pytest

from bert_export import background_load
from bert_export.background_load import BackgroundLoad


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of two processors and 100 ticks a second; a second passes."""
    path = tmp_path / "stat"
    path.write_text("cpu  100 0 50 9000 70 0 0 10 5 0\ncpu0 1 2 3\n")
    seconds = iter([10.0, 11.0])
    monkeypatch.setattr(background_load, "_STAT", path)
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    return path


def _half_a_second_of_work() -> BackgroundLoad:
    return BackgroundLoad(iter([4.0, 4.5]).__next__)


def test_fraction_of_others(stat: Path) -> None:
    """The machine works 1.5 s of 2, idle and waiting left out; this process 0.5 s of them."""
    load = _half_a_second_of_work()
    stat.write_text("cpu  200 0 80 9100 170 0 0 30 50 0\n")
    assert load.fraction() == pytest.approx(0.5)


def test_a_quiet_machine(stat: Path) -> None:
    """This process's time is counted in ticks, which round it down."""
    load = _half_a_second_of_work()
    stat.write_text("cpu  140 0 50 9100 70 0 0 10 5 0\n")
    assert load.fraction() == 0


@pytest.mark.parametrize("content", ["", "intr 1 2\n", "cpu x\n"])
def test_unknown(stat: Path, content: str) -> None:
    stat.write_text(content)
    assert BackgroundLoad().fraction() is None
