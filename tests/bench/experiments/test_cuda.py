"""The CUDA experiment: its errors without a GPU, and its engines, workloads and checks on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click import ClickException, UsageError
from click.testing import CliRunner

from bert_bench.experiments import cuda, cuda_engines
from bert_bench.experiments.cuda import choose, main, time_case
from bert_bench.experiments.cuda_checks import check_outputs, fidelity, goals
from bert_bench.experiments.cuda_engines import Engine, torch_engine
from bert_bench.experiments.cuda_workloads import Workload, forward_workloads, make_batches, text_workloads
from bert_bench.timing_statistics import Timing, summarize
from bert_export.parity import reference_outputs
from bert_models import EncoderConfig, TaskModel, load_model, open_checkpoint
from bert_runtime import Manifest, load
from bert_runtime.gpu.shape_buckets import is_full
from bert_runtime.loading import bundle_tokenizer
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import TextClassification
from bert_runtime.tokenization import Batch

CONFIG = EncoderConfig(
    family="bert", vocab_size=61, hidden_size=32, num_layers=1, num_heads=4, intermediate_size=37, max_positions=130,
    type_vocab_size=2,
)  # fmt: skip
TASK = TextClassification(labels=("a", "b"))


def toy_model() -> TaskModel:
    torch.manual_seed(0)
    model = TaskModel(CONFIG, TASK).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def reference_engine(model: TaskModel) -> Engine:
    return Engine(lambda batch: reference_outputs(model, batch))


def test_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(main, ["--checkpoint", "anything"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: needs a GPU: torch ")


def test_onnxruntime_without_cuda_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "cuda_unavailable_reason", lambda: "there is none")
    result = CliRunner().invoke(main, ["--checkpoint", "anything"])
    assert result.exit_code == 1
    assert "needs ONNX Runtime with CUDA: there is none" in result.stderr


def test_batches_fit_the_model_and_the_token_budget() -> None:
    batches = make_batches(TASK, 61, max_tokens=130)
    # The grid's 384 tokens are more than the model reads.
    shapes = [f"{sequences}x{tokens}" for sequences in (1, 8, 32) for tokens in (16, 64, 128)]
    assert list(batches) == [*shapes, "128x128", "mixed", "mixed, unsorted"]
    for name in shapes:
        full = batches[name]
        assert ["x".join(map(str, batch.input_ids.shape)) for batch in full] == [name]
        assert full[0].attention_mask.all()
    for mixed in (batches["mixed"], batches["mixed, unsorted"]):
        assert sum(len(batch.input_ids) for batch in mixed) == 512
        assert max(batch.input_ids.size for batch in mixed) <= 16384
        assert not all(batch.attention_mask.all() for batch in mixed)


def test_pytorch_in_fp16_is_within_tolerance_of_fp32() -> None:
    batch = make_batches(TASK, 61, max_tokens=130)["1x16"][0]
    errors = check_outputs({"eager": Engine(torch_engine(toy_model(), "cpu"))}, toy_model(), [batch])
    assert 0 < errors["eager"] <= 2e-2


def test_engine_with_wrong_outputs_is_an_error() -> None:
    batch = make_batches(TASK, 61, max_tokens=130)["1x16"][0]
    engines = {"zeros": Engine(lambda batch: np.zeros((len(batch.input_ids), 2), dtype=np.float32))}
    with pytest.raises(ClickException, match=r"differ from PyTorch in FP32 by more than 0.02 of the largest: zeros \("):
        check_outputs(engines, toy_model(), [batch])


def test_engines_run_only_batches_that_they_accept() -> None:
    batches = make_batches(TASK, 61, max_tokens=130)
    full = Engine(reference_engine(toy_model()).run, is_full)
    assert not full.accepts_any_padding
    engines = {"all": reference_engine(toy_model()), "full": full}
    probes = [batches["1x16"][0], batches["mixed"][0]]
    assert check_outputs(engines, toy_model(), probes) == {"all": 0.0, "full": 0.0}
    workloads = forward_workloads(engines, {name: batches[name] for name in ("8x64", "mixed, unsorted")})
    assert {name: (workload.sequences, list(workload.functions)) for name, workload in workloads.items()} == {
        "8x64": (8, ["all", "full"]), "mixed, unsorted": (512, ["all"]),
    }  # fmt: skip


def test_text_workloads_leave_out_engines_that_cannot_run_them(classifier_bundle: Path) -> None:
    manifest = Manifest.read(classifier_bundle)
    session = load(classifier_bundle, device="cpu").session
    batch_sizes: list[int] = []

    def run(batch: Batch) -> FloatArray:
        batch_sizes.append(len(batch.input_ids))
        return session.run(batch)

    engines = {
        "bundle": Engine(run),
        "single-threaded": Engine(run, thread_safe=False),
        "full": Engine(run, is_full),
    }
    workloads = text_workloads(engines, manifest.task, bundle_tokenizer(classifier_bundle, manifest))
    assert {name: (workload.sequences, list(workload.functions)) for name, workload in workloads.items()} == {
        "one text": (1, ["bundle", "single-threaded"]),
        "512 texts": (512, ["bundle", "single-threaded"]),
        "4 callers": (64, ["bundle"]),
    }
    for workload in workloads.values():
        batch_sizes.clear()
        workload.functions["bundle"]()
        assert sum(batch_sizes) == workload.sequences


def test_fidelity_compares_texts_with_pytorch(classifier_bundle: Path, classifier_checkpoint: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    reference = load_model(source, source.task())
    measured = fidelity(load(classifier_bundle, precision="fp32"), reference, ["hello", "my card"])
    assert 0 < measured["max_abs_difference"] <= 1e-4
    assert measured["label_agreement"] == 1.0


def test_engines_that_fail_or_fall_back_are_not_timed() -> None:
    fallbacks = iter((0, 2))

    def fail() -> None:
        raise RuntimeError("recompile limit")

    def nothing() -> None:
        pass

    engines = {
        "good": reference_engine(toy_model()),
        "failing": reference_engine(toy_model()),
        "eager in truth": Engine(reference_engine(toy_model()).run, count_fallbacks=lambda: next(fallbacks)),
    }
    workload = Workload(1, {"good": nothing, "failing": fail, "eager in truth": nothing})
    timings, left_out = time_case(workload, engines, rounds=2, calls=1)
    assert list(timings) == ["good"]
    assert left_out == {
        "failing": "RuntimeError: recompile limit", "eager in truth": "fell back 2 times as it was warmed up",
    }  # fmt: skip


def test_compiled_engine_refuses_shapes_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_model = torch.compile
    for name, value in (("recompile_limit", 8), ("fail_on_recompile_limit_hit", False)):
        monkeypatch.setattr(torch._dynamo.config, name, value)  # undone after the test
    monkeypatch.setattr(cuda_engines, "_RECOMPILE_LIMIT", 2)
    monkeypatch.setattr(
        torch, "compile", lambda model, mode, **options: compile_model(model, backend="eager", **options)
    )
    run = torch_engine(toy_model(), "cpu", compiled=True)
    batches = make_batches(TASK, 61, max_tokens=130)
    for name in ("1x16", "1x64"):
        assert run(batches[name][0]).shape == (1, 2)
    with pytest.raises(Exception, match="recompile_limit"):
        run(batches["1x128"][0])


def test_unknown_case_is_an_error_that_names_those_there_are() -> None:
    cases = {"1x16": Workload(1, {}), "mixed": Workload(512, {})}
    assert list(choose(cases, ())) == ["1x16", "mixed"]
    assert list(choose(cases, ("mixed",))) == ["mixed"]
    with pytest.raises(UsageError, match="there is no case 9x9; there are 1x16, mixed"):
        choose(cases, ("9x9",))


def test_result_is_written_after_every_case(
    monkeypatch: pytest.MonkeyPatch, classifier_checkpoint: Path, classifier_bundle: Path, tmp_path: Path
) -> None:
    source = open_checkpoint(classifier_checkpoint)
    engine = reference_engine(load_model(source, source.task()))
    output = tmp_path / "result.json"

    def time_until_the_second(workload: Workload, *_: object) -> tuple[dict[str, Timing], dict[str, str]]:
        if output.exists():
            raise KeyboardInterrupt
        return {name: summarize([[1.0], [1.0]]) for name in workload.functions}, {}

    monkeypatch.setattr(cuda, "_check_gpu", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    monkeypatch.setattr(cuda, "open_engines", lambda *_: ({"bundle": engine}, {}))
    monkeypatch.setattr(cuda, "time_case", time_until_the_second)
    arguments = ["--bundle", str(classifier_bundle), "--case", "8x16", "--case", "1x16", "--engine", "bundle"]
    result = CliRunner().invoke(main, ["--checkpoint", str(classifier_checkpoint), *arguments, "--output", str(output)])
    assert result.exit_code == 1
    assert list(json.loads(output.read_text(encoding="utf-8"))["timings"]) == ["8x16"]


def test_experiment_runs_without_an_installed_distribution() -> None:
    code = (
        "import importlib.metadata as m; found = m.version\n"
        "def version(name):\n"
        "    if name == 'bert-export': raise m.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "m.version = version\n"
        "import bert_bench.experiments.cuda, bert_export.cli, bert_bench.cli"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_goals_report_figures_that_were_measured() -> None:
    def timing(milliseconds: float) -> Timing:
        return summarize([[milliseconds], [milliseconds]])

    timings = {
        "1x128": {"PyTorch eager": timing(3.0), "torch.compile": timing(0.6), "bundle": timing(0.5)},
        "128x128": {"PyTorch eager": timing(6.0), "bundle": timing(6.4)},
        "mixed, unsorted": {"bundle, packed": timing(1.0), "bundle, no CUDA graphs": timing(2.0)},
    }
    values = [value for _, _, value in goals(timings, {"label_agreement": 0.9995})]
    assert values == ["0.5", "1.2", "2e+04", "0.9375", "2", "not measured", "0.9995"]
    assert {value for _, _, value in goals({}, {})} == {"not measured"}


def test_report_shows_latency_rate_and_speedup() -> None:
    timings = {"1x16": {"PyTorch eager": summarize([[4.0], [4.0]]), "bundle": summarize([[1.0], [1.0]])}}
    assert [line.split() for line in cuda._report(timings, {"1x16": Workload(1, {})}).splitlines()[1:]] == [
        ["1x16", "PyTorch", "eager", "4.000", "250", "1.00"],
        ["1x16", "bundle", "1.000", "1000", "4.00"],
    ]
