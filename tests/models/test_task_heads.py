"""Every family's head for every task: the same numbers as transformers, and the task that config.json implies."""

from pathlib import Path

import pytest
import torch

from bert_models import CheckpointError, load_model, open_checkpoint
from bert_models.families import FAMILIES
from bert_runtime.tasks import (
    TASKS,
    FillMask,
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    Task,
    TextClassification,
    TokenClassification,
)

from .toy import BATCHES, MASKS, TOLERANCE, inputs, save_reference
from .toy_families import CONFIGS, with_first_token
from .toy_families import reference as toy_reference
from .toy_heads import BIO, HEADS, VOCABULARY, Saved, difference

DROPOUTS = {"hidden_dropout": 0.3, "classifier_dropout": 0.2}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("family", "task"), HEADS)
def test_head_gives_the_same_outputs_as_transformers(
    saved: Saved, family: str, task: str, batch: int, mask: str
) -> None:
    theirs, checkpoint = saved(family, task)
    assert difference(load_model(checkpoint, checkpoint.task(task)), theirs, batch, mask) <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "task"), [(family, task) for family, task in HEADS if task in ("fill-mask", "replaced-token-detection")]
)
def test_head_uses_its_own_activation_and_the_configured_epsilon(saved: Saved, family: str, task: str) -> None:
    """The masked-language-model heads of RoBERTa and ELECTRA use gelu whatever `hidden_act` is."""
    changes = {"activation": "relu"} if family == "distilbert" else {"hidden_act": "relu", "layer_norm_eps": 0.3}
    theirs, checkpoint = saved(family, task, **changes)
    assert difference(load_model(checkpoint, checkpoint.task()), theirs) <= TOLERANCE


@pytest.mark.parametrize("family", [family for family, task in HEADS if task == "token-classification"])
def test_token_head_has_the_dropout_of_transformers(saved: Saved, family: str) -> None:
    keys = FAMILIES[family].config_keys
    changes = {keys[name]: value for name, value in DROPOUTS.items() if name in keys}
    theirs, checkpoint = saved(family, "token-classification", **changes)
    dropout = theirs.drop if hasattr(theirs, "drop") else theirs.dropout
    assert load_model(checkpoint, checkpoint.task()).head.dropout.p == dropout.p


def active_dropouts(model: torch.nn.Module, family: str) -> list[float]:
    """Return the probabilities of all dropouts but attention's that a training step passes, in order."""
    found: list[float] = []

    def note(module: torch.nn.Module, *values: object) -> None:
        assert isinstance(module, torch.nn.Dropout)
        if module.p:
            found.append(module.p)

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(note)
    ids, attention, _ = inputs(2, "full", VOCABULARY)
    model.train()(ids, with_first_token(family, attention))
    return found


@pytest.mark.parametrize(("family", "task"), [pair for pair in HEADS if pair[0] not in ("modernbert", "gte")])
def test_dropout_acts_where_that_of_transformers_does(saved: Saved, family: str, task: str) -> None:
    """Except for ModernBERT and GTE, see their modules."""
    keys = FAMILIES[family].config_keys
    probabilities = {**DROPOUTS, "question_answering_dropout": 0.25, "attention_dropout": 0.0}
    changes = {keys[name]: value for name, value in probabilities.items() if name in keys}
    theirs, checkpoint = saved(family, task, **changes)
    ours = load_model(checkpoint, checkpoint.task(task))
    assert active_dropouts(ours, family) == active_dropouts(theirs, family)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "camembert", "mpnet", "bert"])
def test_epsilon_that_a_checkpoint_does_not_name_is_that_of_transformers(saved: Saved, family: str) -> None:
    """The sizes of RoBERTa that are trained from scratch have that of the published models."""
    _, checkpoint = saved(family, "fill-mask")
    values = {key: value for key, value in checkpoint.config_json.items() if key != "layer_norm_eps"}
    expected = CONFIGS[family][1]().layer_norm_eps
    assert checkpoint.family.parse_config(values, "config.json").layer_norm_eps == expected == 1e-12
    assert (
        FAMILIES["roberta"].preset("base").layer_norm_eps == FAMILIES["camembert"].preset("base").layer_norm_eps == 1e-5
    )


@pytest.mark.parametrize("family", ["albert", "electra"])
def test_embedding_size_may_equal_hidden_size(saved: Saved, family: str) -> None:
    theirs, checkpoint = saved(family, "fill-mask", embedding_size=24)
    assert difference(load_model(checkpoint, checkpoint.task()), theirs) <= TOLERANCE


@pytest.mark.parametrize(("family", "task"), HEADS)
def test_architecture_implies_the_task(saved: Saved, family: str, task: str) -> None:
    _, checkpoint = saved(family, task)
    labels = tuple(f"LABEL_{i}" for i in range(len(BIO)))
    expected: dict[str, Task] = {
        "text-classification": TextClassification(labels=labels),
        "token-classification": TokenClassification(labels=labels),
        "question-answering": QuestionAnswering(),
        "fill-mask": FillMask(mask_token="[MASK]", mask_token_id=4),
        "sparse-embedding": FillMask(mask_token="[MASK]", mask_token_id=4),  # the same class
        "next-sentence-prediction": NextSentencePrediction(),
        "replaced-token-detection": ReplacedTokenDetection(),
    }
    assert checkpoint.task() == expected[task]
    assert checkpoint.was_trained_for(task)


def test_every_task_has_a_head_in_some_family() -> None:
    assert {task for family in FAMILIES.values() for task in family.head_weights} == set(TASKS)
    for family in FAMILIES.values():
        assert family.head_weights.keys() == family.architectures.keys()


def test_pre_trained_heads_exist_only_in_families_pre_trained_with_them() -> None:
    for task, families in (
        ("next-sentence-prediction", {"bert", "albert", "ernie"}),
        ("replaced-token-detection", {"electra"}),
    ):
        assert {name for name, family in FAMILIES.items() if task in family.head_weights} == families


@pytest.mark.parametrize(
    ("family", "task"),
    [(name, task) for name, family in FAMILIES.items() for task in TASKS if task not in family.head_weights],
)
def test_missing_head_error_lists_the_heads_of_the_family(saved: Saved, family: str, task: str) -> None:
    _, checkpoint = saved(family, "fill-mask")
    supported = ", ".join(name for name in TASKS if name in FAMILIES[family].head_weights)
    with pytest.raises(CheckpointError, match=f"{family} has no head for '{task}'; it has heads for {supported}"):
        checkpoint.task(task)


@pytest.mark.parametrize(
    ("problem_type", "labels", "expected"),
    [
        ("multi_label_classification", 3, "multi_label"),
        ("regression", 1, "regression"),
        (None, 1, "regression"),
        (None, 3, "single_label"),
    ],
)
def test_problem_type_is_read_like_in_transformers(
    problem_type: str | None, labels: int, expected: str, tmp_path: Path
) -> None:
    theirs = toy_reference("bert", "ForSequenceClassification", num_labels=labels, problem_type=problem_type)
    task = open_checkpoint(save_reference(theirs, tmp_path)).task()
    assert isinstance(task, TextClassification)
    assert task.problem_type == expected
    assert len(task.labels) == labels


def test_pre_trained_pair_head_is_kept_whatever_its_labels_are(tmp_path: Path) -> None:
    theirs = toy_reference(
        "bert", "ForNextSentencePrediction", id2label={0: "yes", 1: "no"}, label2id={"yes": 0, "no": 1}
    )
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path))
    ours = load_model(checkpoint, NextSentencePrediction(), new_head=True)
    assert torch.equal(ours.head.output.weight, theirs.cls.seq_relationship.weight)
