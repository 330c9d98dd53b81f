"""Layers of a student, and what is recorded of them."""

from dataclasses import replace

import pytest
import torch

from bert_models import FAMILIES, EncoderConfig, TaskModel, TrainingError
from bert_models.distillation.layers import LayerTrace, evenly_spaced_layers, matched_layers, student_from_layers
from bert_models.pruning_schedule import TokenPruning
from bert_models.weights import split_parts
from bert_runtime.tasks import TextClassification

from ..toy import inputs, randomize
from ..toy_families import comparable
from ..toy_families import reference as toy_reference
from .teachers import LABELS, MASK


def test_layers_are_chosen_evenly_and_matched_by_depth() -> None:
    assert evenly_spaced_layers(12, 6) == [0, 2, 4, 7, 9, 11]  # the layers of DistilBERT
    assert (evenly_spaced_layers(6, 3), evenly_spaced_layers(4, 1), evenly_spaced_layers(3, 3)) == (
        [0, 2, 5],
        [0],
        [0, 1, 2],
    )
    for num_layers in (0, 7):
        with pytest.raises(
            TrainingError, match=f"a student of 1 to 6 layers, as many as its teacher has, found {num_layers}"
        ):
            evenly_spaced_layers(6, num_layers)
    assert matched_layers(6, 3) == [1, 3, 5]
    assert matched_layers(4, 3) == [1, 2, 3]
    assert matched_layers(2, 4) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("groups", "buckets", "positions"),
    [(None, None, None), (1, None, None), (2, None, None), (None, 32, None), (None, None, "c2p|p2c")],
)
def test_student_from_layers_copies_the_chosen_layers(
    toy_config: EncoderConfig, groups: int | None, buckets: int | None, positions: str | None
) -> None:
    family = "albert" if groups else "mpnet" if buckets else "deberta-v2" if positions else "bert"
    config = replace(
        toy_config, family=family, num_layers=4, num_layer_groups=groups, embedding_size=16 if groups else None,
        relative_buckets=buckets, position_attention=positions,
    )  # fmt: skip
    model = TaskModel(config, MASK).eval()
    randomize(model)
    ids, mask, segments = inputs(2, "random", config.vocab_size)
    with torch.no_grad():
        whole = student_from_layers(model, 4)
        assert torch.equal(whole(ids, mask, segments), model(ids, mask, segments))
        student = student_from_layers(model, 2)
        model.encoder.order = [model.encoder.order[0], model.encoder.order[3]]  # the first and the last
        assert torch.equal(student(ids, mask, segments), model(ids, mask, segments))
    assert student.encoder.order == ([0, 0] if groups == 1 else [0, 1])
    student.encoder.layers[0].attention.query.weight.data.zero_()
    assert model.encoder.layers[0].attention.query.weight.abs().sum() > 0  # copies


def test_students_of_a_model_that_prunes_tokens_keep_all(toy_config: EncoderConfig) -> None:
    """The teacher's schedule is one of its layers, and may name one that the student lacks."""
    config = replace(toy_config, num_layers=4, token_pruning=TokenPruning.parse("3:0.5"))
    student = student_from_layers(TaskModel(config, TextClassification(labels=LABELS)), 2)
    assert student.config.token_pruning is None


@pytest.mark.parametrize("name", ["bert", "mpnet", "deberta-v2", "modernbert"])
def test_recorded_hidden_states_and_attention_equal_those_of_transformers(name: str) -> None:
    family = FAMILIES[name]
    reference = toy_reference(name, "Model", attn_implementation="eager")
    model = TaskModel(family.parse_config(reference.config.to_dict(), "here"), TextClassification(labels=LABELS)).eval()
    keys = {
        name: family.checkpoint_key(f"encoder.{name}", "text-classification").removeprefix(family.prefix)
        for name, _ in model.encoder.named_parameters()
    }
    weights = split_parts(reference.state_dict(), keys.values(), family.prefix)
    for parameter_name, parameter in model.encoder.named_parameters():
        parameter.data.copy_(weights[keys[parameter_name]])
    trace = LayerTrace(model.encoder, model.config.num_heads)
    ids, mask, segments = inputs(3, "random")
    with torch.no_grad():
        extra = {"token_type_ids": segments} if model.config.uses_segment_ids else {}
        expected = reference(ids, mask, **extra, output_hidden_states=True, output_attentions=True)
        for _ in range(2):  # the second pass replaces the first
            model(ids, mask, segments)
    assert len(trace.hidden) == model.config.num_layers
    hidden = list(trace.hidden)
    if model.encoder.final_norm is not None:  # transformers returns the last layer's hidden states after it
        hidden[-1] = model.encoder.final_norm(hidden[-1]).detach()
    for found, layer in zip(hidden, expected.hidden_states[1:], strict=True):
        assert float((found - layer)[comparable(name, mask)].abs().max()) < 1e-5
    attention = trace.attention().masked_fill(~mask.bool()[:, None, None, :], -1e4).softmax(-1)
    queries = comparable(name, mask)[:, None, :, None]
    assert float(((attention - expected.attentions[-1]) * queries).abs().max()) < 1e-6
