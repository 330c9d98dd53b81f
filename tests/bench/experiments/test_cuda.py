"""The experiment on a GPU: what it does without one, and its engines and workloads on the CPU."""

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from bert_bench.experiments import cuda
from bert_bench.experiments.cuda import (
    Work,
    batches_of,
    forward_works,
    main,
    text_works,
    torch_engine,
)
from bert_bench.experiments.cuda_checks import Engine, check_outputs, fidelity, goals
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


def toy() -> TaskModel:
    torch.manual_seed(0)
    model = TaskModel(CONFIG, TASK).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(main, ["--checkpoint", "anything"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: needs a GPU: torch ")


def test_without_onnxruntime_for_it_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "cuda_unavailable_reason", lambda: "there is none")
    result = CliRunner().invoke(main, ["--checkpoint", "anything"])
    assert result.exit_code == 1
    assert "needs ONNX Runtime with CUDA: there is none" in result.stderr


def engine(model: TaskModel) -> Engine:
    return Engine(lambda batch: reference_outputs(model, batch))


def test_workloads_fit_the_model_and_the_budget() -> None:
    batches = batches_of(TASK, 61, max_tokens=130)
    shapes = [f"{rows}x{tokens}" for rows in (1, 8, 32) for tokens in (16, 64, 128)]  # 384 tokens are too many
    assert list(batches) == [*shapes, "128x128", "mixed", "mixed, unsorted"]
    for name in shapes:
        each = batches[name]
        assert ["x".join(map(str, batch.input_ids.shape)) for batch in each] == [name]
        assert each[0].attention_mask.all()
    for mixed in (batches["mixed"], batches["mixed, unsorted"]):
        assert sum(len(batch.input_ids) for batch in mixed) == 512
        assert max(batch.input_ids.size for batch in mixed) <= 16384
        assert not all(batch.attention_mask.all() for batch in mixed)


def test_pytorch_in_half_precision_gives_its_outputs() -> None:
    batch = batches_of(TASK, 61, max_tokens=130)["1x16"][0]
    errors = check_outputs({"eager": Engine(torch_engine(toy(), "cpu"))}, toy(), [batch])
    assert 0 < errors["eager"] <= 2e-2


def test_an_engine_that_answers_otherwise_is_not_timed() -> None:
    from click import ClickException

    batch = batches_of(TASK, 61, max_tokens=130)["1x16"][0]
    engines = {"zeros": Engine(lambda each: np.zeros((len(each.input_ids), 2), dtype=np.float32))}
    with pytest.raises(ClickException, match=r"not the outputs of PyTorch in FP32, to 0.02: zeros \("):
        check_outputs(engines, toy(), [batch])


def test_an_engine_is_given_what_it_reads() -> None:
    batches = batches_of(TASK, 61, max_tokens=130)
    full = Engine(engine(toy()).run, is_full)
    assert not full.reads_all
    engines = {"all": engine(toy()), "full": full}
    assert check_outputs(engines, toy(), [batches["1x16"][0], batches["mixed"][0]]) == {"all": 0.0, "full": 0.0}
    works = forward_works(engines, {name: batches[name] for name in ("8x64", "mixed, unsorted")})
    assert {case: (work.sequences, list(work.runs)) for case, work in works.items()} == {
        "8x64": (8, ["all", "full"]), "mixed, unsorted": (512, ["all"]),
    }  # fmt: skip


def test_texts_go_in(classifier_bundle: Path) -> None:
    manifest = Manifest.read(classifier_bundle)
    session = load(classifier_bundle, device="cpu").session
    rows: list[int] = []

    def run(batch: Batch) -> FloatArray:
        rows.append(len(batch.input_ids))
        return session.run(batch)

    engines = {
        "ours": Engine(run),
        "of one thread": Engine(run, many_callers=False),
        "full": Engine(run, is_full),
    }
    works = text_works(engines, manifest.task, bundle_tokenizer(classifier_bundle, manifest))
    assert {case: (work.sequences, list(work.runs)) for case, work in works.items()} == {
        "one text": (1, ["ours", "of one thread"]),
        "512 texts": (512, ["ours", "of one thread"]),
        "4 callers": (64, ["ours"]),
    }
    for work in works.values():
        rows.clear()
        work.runs["ours"]()
        assert sum(rows) == work.sequences


def test_outputs_on_real_texts(classifier_bundle: Path, classifier_checkpoint: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    found = fidelity(load(classifier_bundle, precision="fp32"), load_model(source, source.task()), ["hello", "my card"])
    assert 0 < found["max_abs_difference"] <= 1e-4
    assert found["label_agreement"] == 1.0


def test_what_is_aimed_at() -> None:
    def timing(milliseconds: float) -> Timing:
        return summarize([[milliseconds], [milliseconds]])

    timings = {
        "1x128": {"PyTorch eager": timing(3.0), "torch.compile": timing(0.6), "bundle": timing(0.5)},
        "128x128": {"PyTorch eager": timing(6.0), "bundle": timing(6.4)},
        "mixed, unsorted": {"bundle, packed": timing(1.0), "bundle, no CUDA graphs": timing(2.0)},
    }
    here = [found for _, _, found in goals(timings, {"label_agreement": 0.9995})]
    assert here == ["0.5", "1.2", "2e+04", "0.9375", "2", "not measured", "0.9995"]
    assert {found for _, _, found in goals({}, {})} == {"not measured"}


def test_the_table() -> None:
    timings = {"1x16": {"PyTorch eager": summarize([[4.0], [4.0]]), "bundle": summarize([[1.0], [1.0]])}}
    assert [line.split() for line in cuda._report(timings, {"1x16": Work(1, {})}).splitlines()[1:]] == [
        ["1x16", "PyTorch", "eager", "4.000", "250", "1.00"],
        ["1x16", "bundle", "1.000", "1000", "4.00"],
    ]
