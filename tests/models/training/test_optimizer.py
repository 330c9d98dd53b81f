"""Parameter groups and the learning-rate schedule."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bert_models import (
    EncoderConfig,
    TaskModel,
    load_model,
    open_checkpoint,
)
from bert_models.training.optimizer import linear_schedule, number_by_module, parameter_groups
from bert_runtime.tasks import (
    TextClassification,
    TokenClassification,
)

TASK = TextClassification(labels=("x", "y"))


def test_biases_and_norms_have_no_weight_decay(classifier_checkpoint: Path) -> None:
    checkpoint = open_checkpoint(classifier_checkpoint)
    model = load_model(checkpoint, checkpoint.task())
    decayed, plain = parameter_groups(model, 0.01)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.01, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(p)] for p in plain["params"]} == {n for n in names.values() if n.endswith("bias") or "norm" in n}
    assert len(decayed["params"]) + len(plain["params"]) == len(names)


def test_crf_is_a_parameter_group_with_its_own_rate(toy_config: Any) -> None:
    model = TaskModel(toy_config, TokenClassification(labels=("O", "B-x"), crf=True))
    *_, chain = parameter_groups(model, 0.01)
    assert [p.shape for p in chain["params"]] == [(4, 2)]
    assert chain["weight_decay"] == 0
    assert chain["lr"] > 1e-3
    grouped = [p for group in parameter_groups(model, 0.01) for p in group["params"]]
    assert len(grouped) == len(list(model.parameters())) == len({id(p) for p in grouped})


@pytest.mark.parametrize(("steps", "rates"), [(1, [1.0]), (4, [1.0, 0.75, 0.5, 0.25])])
def test_first_step_has_the_peak_rate_without_warmup(steps: int, rates: list[float]) -> None:
    schedule = linear_schedule(steps, 0.0)
    assert [schedule(step) for step in range(steps)] == rates
    theirs = transformers.get_linear_schedule_with_warmup(
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1.0), 0, steps
    )
    assert theirs.get_last_lr() == [rates[0]]


def rates_of(model: TaskModel) -> dict[str, float]:
    groups = parameter_groups(model, 0.01, 1.0, 0.5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rates = {names[id(p)]: group["lr"] for group in groups for p in group["params"]}
    assert len(rates) == sum(len(group["params"]) for group in groups) == len(names)
    for group in groups:
        assert all(group["weight_decay"] == (0.01 if p.ndim >= 2 else 0) for p in group["params"] if group["lr"] <= 1)
    return rates


def test_layer_lr_decay_lowers_rates_towards_the_embeddings(toy_config: EncoderConfig) -> None:
    rates = rates_of(TaskModel(toy_config, TASK))
    for name, rate in rates.items():
        start = {"head": 1.0, "encoder.layers.1": 0.5, "encoder.layers.0": 0.25, "encoder.embeddings": 0.125}
        assert rate == next(value for prefix, value in start.items() if name.startswith(prefix)), name


def test_the_final_norm_has_the_rate_of_the_head(toy_config: EncoderConfig) -> None:
    rates = rates_of(TaskModel(replace(toy_config, norm_first=True), TASK))
    assert rates["encoder.final_norm.weight"] == rates["encoder.final_norm.bias"] == 1.0
    assert rates["encoder.layers.1.attention.query.weight"] == 0.5


def test_shared_layers_have_the_rate_of_their_topmost_layer(toy_config: EncoderConfig) -> None:
    shared = EncoderConfig(**{**vars(toy_config), "num_layers": 6, "num_layer_groups": 2})
    rates = rates_of(TaskModel(shared, TASK))
    assert rates["encoder.layers.1.attention.query.weight"] == 0.5  # layers 4 to 6
    assert rates["encoder.layers.0.attention.query.weight"] == 0.5**4  # layers 1 to 3
    assert rates["encoder.embeddings.token.weight"] == 0.5**7


def test_crf_keeps_its_own_rate(toy_config: EncoderConfig) -> None:
    model = TaskModel(toy_config, TokenClassification(labels=("O", "B-x"), crf=True))
    *_, chain = parameter_groups(model, 0.01, 1e-4, 0.9)
    assert [p.shape for p in chain["params"]] == [(4, 2)]
    assert (chain["lr"], chain["weight_decay"]) == (1e-2, 0)


def test_states_are_numbered_by_the_module_and_parameters_without_gradients_have_one() -> None:
    module = torch.nn.ModuleDict({"norm": torch.nn.LayerNorm(2), "used": torch.nn.Linear(2, 2)})
    module["unused"] = torch.nn.Linear(2, 3, bias=False)
    optimizer = torch.optim.AdamW(parameter_groups(module, 0.01))  # matrices first
    module["used"](module["norm"](torch.randn(4, 2))).sum().backward()
    optimizer.step()
    numbered = number_by_module(optimizer.state_dict(), optimizer, module)
    shapes = [tuple(parameter.shape) for parameter in module.parameters()]
    assert [tuple(numbered["state"][number]["exp_avg"].shape) for number in range(len(shapes))] == shapes
    assert [int(numbered["state"][number]["step"]) for number in range(len(shapes))] == [1, 1, 1, 1, 0]
    optimizer.load_state_dict(numbered)
    assert all(optimizer.state[p]["exp_avg"].shape == p.shape for p in module.parameters())
