"""The steps for a new GPU: what they run, and that one failure does not stop the others."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bert_bench.experiments import cuda_attention_kernels, cuda_plan
from bert_bench.experiments.cuda_attention_kernels import attention_kernels
from bert_bench.experiments.cuda_plan import STEPS, Measurement, main, run_step


def test_failures_are_listed_and_the_next_measurement_runs(tmp_path: Path) -> None:
    measurements = [
        Measurement("exits", [sys.executable, "-c", "print('so far'); raise SystemExit(3)"]),
        Measurement("absent", ["no-such-program"]),
        Measurement("fine", [sys.executable, "-c", "print('done')"]),
        Measurement("endless", [sys.executable, "-c", "import time; time.sleep(60)"]),
    ]
    failed = run_step(measurements, tmp_path, limit_s=2)
    assert failed[0] == "exits: exit code 3, see exits.log"
    assert failed[1].startswith("absent: ")
    assert failed[2] == "endless: the step's time was over, see endless.log"
    assert (tmp_path / "exits.log").read_text(encoding="utf-8") == "so far\n"
    assert (tmp_path / "fine.log").read_text(encoding="utf-8") == "done\n"


def test_steps_export_what_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[str] = []

    def record(measurements: list[Measurement], output: Path) -> list[str]:
        ran.extend(measurement.name for measurement in measurements)
        return []

    monkeypatch.setattr(cuda_plan, "run_step", record)
    arguments = ["--checkpoint", str(tmp_path), "--output", str(tmp_path / "results"), "--step", "sessions"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert ran == ["export", "sessions"]
    (tmp_path / "bundle.json").touch()
    assert CliRunner().invoke(main, [*arguments, "--bundle", str(tmp_path)]).exit_code == 0
    assert ran[2:] == ["sessions"]
    assert list(STEPS) == ["kernels", "sessions", "bert-base", "pytorch"]


def test_kernels_are_read_from_the_debug_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = """
### 8x64
Operator=Attention DataType=fp16 SdpaKernel=EFFICIENT_ATTENTION
Operator=Attention DataType=fp16 SdpaKernel=EFFICIENT_ATTENTION
Operator=MultiHeadAttention DataType=fp16 SdpaKernel=MATH
### 8x63
Operator=Attention DataType=fp16 SdpaKernel=CUDNN_FLASH_ATTENTION
Error=RuntimeException
"""
    monkeypatch.setattr(cuda_attention_kernels, "_RUN", f"print({output!r})")
    assert attention_kernels(tmp_path / "model.onnx", "27") == {
        "8x64": ["Attention EFFICIENT_ATTENTION", "MultiHeadAttention MATH"],
        "8x63": ["Attention CUDNN_FLASH_ATTENTION", "RuntimeException"],
    }
    monkeypatch.setattr(cuda_attention_kernels, "_RUN", "raise SystemExit('no such library')")
    assert (
        json.dumps(attention_kernels(tmp_path / "model.onnx", "19")) == '{"all": ["exit code 1: no such library\\n"]}'
    )
