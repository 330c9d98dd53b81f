"""What a user learns of native kernels that exist for the processor, but not in the installation."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bert_export.cli import main
from bert_runtime import load
from bert_runtime.cpu import native_kernels

SUPPORTED, UNSUPPORTED = frozenset({"avx2", "fma"}), frozenset({"sse4_2"})


@pytest.fixture(autouse=True)
def no_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installation without kernels, on a processor that has some, in a process that has loaded nothing yet."""
    monkeypatch.setattr(native_kernels, "__file__", str(tmp_path / "cpu" / "native_kernels.py"))
    monkeypatch.setattr(native_kernels, "cpu_flags", lambda: SUPPORTED)
    forget()
    yield
    forget()


def forget() -> None:
    native_kernels.kernel_names.cache_clear()
    native_kernels.warn_of_missing_kernels.cache_clear()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_load_warns_once_and_says_how_to_get_them(embedding_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    for precision in ("int8", "int8", "fp32"):
        load(embedding_bundle, precision=precision)
    (message,) = warnings(caplog)
    assert message.startswith("running without native kernels")
    assert "reinstall bert-export" in message
    assert "g++" in message
    assert {record.name for record in caplog.records} == {"bert_runtime"}


def test_load_without_kernels_on_request_does_not_warn(
    embedding_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(embedding_bundle, precision="int8", kernels=False)
    assert warnings(caplog) == []


def test_processor_without_kernels_is_no_warning(
    embedding_bundle: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_kernels, "cpu_flags", lambda: UNSUPPORTED)
    load(embedding_bundle, precision="int8")
    assert warnings(caplog) == []


def test_system_without_kernels_is_no_warning(
    embedding_bundle: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_kernels.sys, "platform", "win32")
    load(embedding_bundle, precision="int8")
    assert warnings(caplog) == []
    assert not native_kernels.kernels_missing()


@pytest.mark.parametrize("flags", [SUPPORTED, UNSUPPORTED])
def test_inspect_says_that_they_are_missing(
    flags: frozenset[str], embedding_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_kernels, "cpu_flags", lambda: flags)
    result = CliRunner().invoke(main, ["inspect", str(embedding_bundle)])
    assert result.exit_code == 0
    assert ("native kernels, which this installation lacks; reinstall" in result.output) == (flags == SUPPORTED)
