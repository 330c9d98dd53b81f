"""The experiment on a GPU: what it does without one, and its engines and workloads on the CPU."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from bert_bench.experiments import cuda
from bert_bench.experiments.cuda import batches_of, check_outputs, main, torch_engine
from bert_bench.timing import summarize
from bert_models import EncoderConfig, TaskModel
from bert_runtime.tasks import TextClassification

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
    monkeypatch.setattr(cuda, "cuda_problem", lambda: "there is none")
    result = CliRunner().invoke(main, ["--checkpoint", "anything"])
    assert result.exit_code == 1
    assert "needs ONNX Runtime with CUDA: there is none" in result.stderr


def test_workloads_fit_the_model_and_the_budget() -> None:
    batches = batches_of(TASK, 61, max_tokens=130)
    shapes = ["1x16", "1x128", "8x128", "32x128", "128x128"]  # 384 tokens are too many
    assert list(batches) == [*shapes, "mixed", "mixed, unsorted"]
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
    errors = check_outputs({"eager": torch_engine(toy(), "cpu")}, toy(), [batch])
    assert 0 < errors["eager"] <= 2e-2


def test_an_engine_that_answers_otherwise_is_not_timed() -> None:
    from click import ClickException

    batch = batches_of(TASK, 61, max_tokens=130)["1x16"][0]
    engines = {"zeros": lambda each: np.zeros((len(each.input_ids), 2), dtype=np.float32)}
    with pytest.raises(ClickException, match=r"not the outputs of PyTorch in FP32, to 0.02: zeros \("):
        check_outputs(engines, toy(), [batch])


def test_the_table() -> None:
    timings = {"1x16": {"PyTorch eager": summarize([[4.0], [4.0]]), "bundle": summarize([[1.0], [1.0]])}}
    batches = {"1x16": [batches_of(TASK, 61, max_tokens=130)["1x16"][0]]}
    assert [line.split() for line in cuda._report(timings, batches).splitlines()[1:]] == [
        ["1x16", "PyTorch", "eager", "4.000", "250", "1.00"],
        ["1x16", "bundle", "1.000", "1000", "4.00"],
    ]
