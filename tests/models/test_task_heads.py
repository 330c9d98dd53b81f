"""Every family's head for every task: transformers' numbers, its keys in both directions, the task it is read as."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor, nn

from bert_models import Checkpoint, CheckpointError, TaskModel, load_model, open_checkpoint, save_model
from bert_models.families import FAMILIES
from bert_runtime.tasks import (
    TASKS,
    FillMask,
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

from .families import CONFIGS
from .toy import BATCHES, MASKS, TOLERANCE, inputs, randomize, save_reference

VOCABULARY = 211
"""More than the toy vocabulary has, so that its tokenizer fits."""

BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")

HEADS = [
    (family, task) for family, each in FAMILIES.items() for task in each.architectures if task != "sentence-embedding"
]
"""Every family with every task that it has a pre-trained or fine-tuned head for."""

FILL_MASK = [family for family, task in HEADS if task == "fill-mask"]


def reference(family: str, task: str, **changes: Any) -> Any:
    """A random transformers model of the class that a family has for a task."""
    _, config, sizes = CONFIGS[family]
    labels = {"num_labels": len(BIO)} if task in ("text-classification", "token-classification") else {}
    values = {**sizes, "vocab_size": VOCABULARY, **labels, **changes}
    model = getattr(transformers, FAMILIES[family].architectures[task])(config(**values)).eval()
    randomize(model)
    return model


Saved = Callable[..., tuple[Any, Checkpoint]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, classifier_checkpoint: Path) -> Saved:
    """`saved(family, task)`: a transformers model, and the checkpoint with a tokenizer that it was saved as."""

    @cache
    def save(family: str, task: str, **changes: Any) -> tuple[Any, Checkpoint]:
        theirs = reference(family, task, **changes)
        folder = save_reference(theirs, tmp_path_factory.mktemp("reference") / family)
        shutil.copyfile(classifier_checkpoint / "tokenizer.json", folder / "tokenizer.json")
        return theirs, open_checkpoint(folder)

    return save


def expected_output(theirs: Any, task: str, ids: Tensor, attention: Tensor, segments: Tensor | None) -> Tensor:
    """What transformers computes, in the shape of our output."""
    extra = {} if segments is None else {"token_type_ids": segments}
    outputs = theirs(input_ids=ids, attention_mask=attention, **extra)
    if task == "question-answering":
        return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
    found: Tensor = outputs["sop_logits" if "sop_logits" in outputs else "logits"]
    return found


def difference(ours: TaskModel, theirs: Any, batch: int = 3, mask: str = "random") -> float:
    """Largest absolute difference at real tokens, or of whole rows where a head gives one row per sequence."""
    ids, attention, segments = inputs(batch, mask, VOCABULARY)
    with torch.no_grad():
        found = ours(ids, attention, segments)
        expected = expected_output(
            theirs, ours.task.name, ids, attention, segments if ours.config.uses_segment_ids else None
        )
    assert found.shape == expected.shape
    assert float(expected.std()) > 0.01  # outputs that are all alike would prove little
    per_token = found.shape[:2] == ids.shape
    return float((found - expected)[attention.bool() if per_token else slice(None)].abs().max())


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("family", "task"), HEADS)
def test_same_numbers(saved: Saved, family: str, task: str, batch: int, mask: str) -> None:
    theirs, checkpoint = saved(family, task)
    assert difference(load_model(checkpoint, checkpoint.task(task)), theirs, batch, mask) <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "task"), [each for each in HEADS if each[1] in ("fill-mask", "replaced-token-detection")]
)
def test_activation_and_epsilon_of_heads_that_normalise(saved: Saved, family: str, task: str) -> None:
    """RoBERTa's and ELECTRA's masked-language heads keep their gelu whatever the encoder computes with."""
    changes = {"activation": "relu"} if family == "distilbert" else {"hidden_act": "relu", "layer_norm_eps": 0.3}
    theirs, checkpoint = saved(family, task, **changes)
    assert difference(load_model(checkpoint, checkpoint.task()), theirs) <= TOLERANCE


@pytest.mark.parametrize("family", ["albert", "electra"])
def test_embeddings_as_wide_as_the_model(saved: Saved, family: str) -> None:
    theirs, checkpoint = saved(family, "fill-mask", embedding_size=24)
    assert difference(load_model(checkpoint, checkpoint.task()), theirs) <= TOLERANCE


@pytest.mark.parametrize(("family", "task"), HEADS)
def test_task_is_told_by_the_architecture(saved: Saved, family: str, task: str) -> None:
    _, checkpoint = saved(family, task)
    labels = tuple(f"LABEL_{i}" for i in range(len(BIO)))
    expected: dict[str, Task] = {
        "text-classification": TextClassification(labels=labels),
        "token-classification": TokenClassification(labels=labels),
        "question-answering": QuestionAnswering(),
        "fill-mask": FillMask(mask_token="[MASK]", mask_token_id=4),
        "next-sentence-prediction": NextSentencePrediction(),
        "replaced-token-detection": ReplacedTokenDetection(),
    }
    assert checkpoint.task() == expected[task]
    assert checkpoint.was_trained_for(task)


def test_every_task_has_a_head_somewhere() -> None:
    assert {task for family in FAMILIES.values() for task in family.head_weights} == set(TASKS)
    for family in FAMILIES.values():
        assert family.head_weights.keys() == family.architectures.keys()


def test_pre_trained_heads_are_where_pre_training_left_them() -> None:
    for task, having in (("next-sentence-prediction", {"bert", "albert"}), ("replaced-token-detection", {"electra"})):
        assert {name for name, family in FAMILIES.items() if task in family.head_weights} == having


@pytest.mark.parametrize(
    ("family", "task"), [(f, t) for f, each in FAMILIES.items() for t in TASKS if t not in each.head_weights]
)
def test_family_without_the_head_names_those_it_has(saved: Saved, family: str, task: str) -> None:
    _, checkpoint = saved(family, "fill-mask")
    having = ", ".join(each for each in TASKS if each in FAMILIES[family].head_weights)
    with pytest.raises(CheckpointError, match=f"{family} has no head for '{task}'; it has heads for {having}"):
        checkpoint.task(task)


# Both ways.


def save(model: TaskModel, folder: Path, tokenizer_from: Path) -> Path:
    folder.mkdir()
    save_model(model, folder, tokenizer_from=tokenizer_from)
    return folder


def assert_survives(ours: TaskModel, folder: Path) -> None:
    """The checkpoint in `folder` is read as the model that was saved: configuration, task and every weight."""
    again = open_checkpoint(folder)
    assert again.config == ours.config
    assert again.task() == ours.task
    found, expected = load_model(again, again.task()).state_dict(), ours.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("family", "task"), HEADS)
def test_saved_checkpoint_loads_in_transformers(
    saved: Saved, family: str, task: str, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    _, source = saved(family, task)
    ours = load_model(source, source.task())
    randomize(ours, seed=1)
    folder = save(ours, tmp_path / "saved", classifier_checkpoint)
    architecture = FAMILIES[family].architectures[task]
    assert json.loads((folder / "config.json").read_text())["architectures"] == [architecture]
    theirs, report = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    missing = set(report["missing_keys"])
    if architecture == "AlbertForPreTraining":  # the sentence-order head comes with a masked-language head
        missing = {key for key in missing if not key.startswith("predictions.")}
    assert not missing
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert difference(ours, theirs.eval()) <= TOLERANCE
    assert_survives(ours, folder)


@pytest.mark.parametrize("family", FILL_MASK)
def test_output_matrix_is_saved_once_and_tied(
    saved: Saved, family: str, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    _, source = saved(family, "fill-mask")
    ours = load_model(source, source.task())
    assert ours.head.tokens is ours.encoder.embeddings.token
    folder = save(ours, tmp_path / "saved", classifier_checkpoint)
    width = source.config.embedding_width
    shapes = [tuple(tensor.shape) for tensor in load_file(folder / "model.safetensors").values()]
    assert shapes.count((VOCABULARY, width)) == 1
    theirs = getattr(transformers, FAMILIES[family].architectures["fill-mask"]).from_pretrained(folder)
    assert theirs.get_output_embeddings().weight is theirs.get_input_embeddings().weight


@pytest.mark.parametrize(
    ("family", "task"),
    [
        ("roberta", TokenClassification(labels=BIO, aggregation="first")),
        ("bert", TokenClassification(labels=BIO, aggregation="max", bio=True)),
        ("distilbert", TokenClassification(labels=BIO, crf=True, bio=True)),
        ("bert", QuestionAnswering(no_answer=True, no_answer_threshold=-1.5, max_answer_tokens=9, n_best=7, top_k=3)),
        ("electra", ReplacedTokenDetection(threshold=0.2)),
        ("bert", FillMask(mask_token="[MASK]", mask_token_id=4, top_k=3, candidates=("good", "bad"))),
        ("albert", NextSentencePrediction()),
        ("bert", SentenceEmbedding(dimensions=24, pooling="attention")),
        (
            "electra",
            SentenceEmbedding(
                dimensions=5, pooling="attention", dense_sizes=(7, 5), dense_activations=("tanh", "identity")
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_settings_survive_saving(
    saved: Saved, family: str, task: Task, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    _, source = saved(family, "fill-mask")
    ours = load_model(source, task, new_head=True)
    randomize(ours)
    assert_survives(ours, save(ours, tmp_path / "saved", classifier_checkpoint))


# Fill-mask: what the head needs of the tokenizer and of the configuration.


def with_vocabulary(folder: Path, checkpoint: Checkpoint, *tokens: str) -> Checkpoint:
    """A copy of `checkpoint` whose tokenizer knows these tokens alone."""
    shutil.copytree(checkpoint.path, folder)
    Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=tokens[0])).save(
        str(folder / "tokenizer.json")
    )
    return open_checkpoint(folder)


def test_mask_is_found_in_the_vocabulary(saved: Saved, tmp_path: Path) -> None:
    _, source = saved("roberta", "fill-mask")
    checkpoint = with_vocabulary(tmp_path / "copy", source, "<unk>", "<pad>", "a", "<mask>")
    assert checkpoint.task() == FillMask(mask_token="<mask>", mask_token_id=3)


def test_vocabulary_without_a_mask_is_refused(saved: Saved, tmp_path: Path) -> None:
    _, source = saved("bert", "fill-mask")
    checkpoint = with_vocabulary(tmp_path / "copy", source, "[UNK]", "[PAD]", "a")
    with pytest.raises(CheckpointError, match=r"the vocabulary has neither of the mask tokens \[MASK\], <mask>"):
        checkpoint.task()


@pytest.mark.parametrize("family", FILL_MASK)
def test_untied_head_is_refused_by_its_configuration(saved: Saved, family: str, tmp_path: Path) -> None:
    _, checkpoint = saved(family, "fill-mask", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match="expected tie_word_embeddings to be true, found false"):
        checkpoint.task()
    assert checkpoint.task("question-answering") == QuestionAnswering()  # where nothing is tied, nothing is amiss


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("bert", "cls.predictions.decoder.weight"),
        ("roberta", "lm_head.decoder.weight"),
        ("distilbert", "vocab_projector.weight"),
        ("albert", "predictions.decoder.weight"),
        ("electra", "generator_lm_head.weight"),
    ],
)
def test_output_matrix_in_the_weights(saved: Saved, family: str, key: str, tmp_path: Path) -> None:
    """Old checkpoints hold the tied matrix twice; transformers computes with one of its own if that differs."""
    theirs, source = saved(family, "fill-mask")
    folder = Path(shutil.copytree(source.path, tmp_path / "copy"))
    tensors = load_file(folder / "model.safetensors")
    embedding = theirs.get_input_embeddings().weight.detach()
    save_file({**tensors, key: embedding.clone()}, folder / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(folder)
    assert difference(load_model(checkpoint, checkpoint.task()), theirs) <= TOLERANCE
    save_file({**tensors, key: embedding + 1}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=key):
        load_model(checkpoint, checkpoint.task())


# Token classification: the linear chain.


def test_chain_is_the_one_key_that_transformers_does_not_know(
    saved: Saved, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    _, source = saved("bert", "token-classification")
    task = TokenClassification(labels=BIO, crf=True, bio=True)
    ours = load_model(source, task, new_head=True)
    randomize(ours)
    folder = save(ours, tmp_path / "saved", classifier_checkpoint)
    theirs, report = transformers.BertForTokenClassification.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert set(report["unexpected_keys"]) == {"crf.transitions"}
    assert difference(ours, theirs.eval()) <= TOLERANCE
    assert theirs.config.id2label == dict(enumerate(BIO))
    again = load_model(open_checkpoint(folder), task)
    kept = torch.tensor(again.runtime_task().to_dict()["transitions"])
    torch.testing.assert_close(kept, ours.head.crf.transitions.detach(), rtol=1e-7, atol=0)


def test_chain_is_left_out_and_added(saved: Saved, tmp_path: Path, classifier_checkpoint: Path) -> None:
    _, source = saved("bert", "token-classification")
    labels = source.task().to_dict()["labels"]
    plain, chained = TokenClassification(labels=labels), TokenClassification(labels=labels, crf=True)
    with pytest.raises(CheckpointError, match=r"1 missing: crf\.transitions"):
        load_model(source, chained)
    ours = load_model(source, chained, new_head=True)  # the labels are the same, so the projection is kept
    assert torch.equal(ours.head.output.weight, load_model(source, plain).head.output.weight)
    assert not ours.head.crf.transitions.any()
    folder = save(ours, tmp_path / "saved", classifier_checkpoint)
    assert load_model(open_checkpoint(folder), plain).runtime_task() == plain


def test_new_labels_replace_projection_and_chain(saved: Saved, tmp_path: Path, classifier_checkpoint: Path) -> None:
    _, source = saved("bert", "token-classification")
    old = load_model(source, TokenClassification(labels=BIO, crf=True), new_head=True)
    randomize(old)
    folder = save(old, tmp_path / "saved", classifier_checkpoint)
    renamed = TokenClassification(labels=("O", *(label.lower() for label in BIO[1:])), crf=True)
    ours = load_model(open_checkpoint(folder), renamed, new_head=True)
    assert not ours.head.crf.transitions.any()
    assert not torch.equal(ours.head.output.weight, old.head.output.weight)
    assert torch.equal(ours.encoder.layers[2].feed_forward.down.weight, old.encoder.layers[2].feed_forward.down.weight)


# Sentence embedding: attention pooling.


def attention_pooled(hidden: Tensor, kept: Tensor, score: nn.Linear) -> Tensor:
    """One row by the definition: hidden [S, H], kept bool [S] → [H]."""
    tokens = hidden[kept]
    weights = (tokens @ score.weight[0] + score.bias).softmax(dim=0)
    return (weights[:, None] * tokens).sum(dim=0)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_pooling_by_its_definition(saved: Saved, family: str, batch: int, mask: str) -> None:
    _, source = saved(family, "fill-mask")
    ours = load_model(source, SentenceEmbedding(dimensions=24, pooling="attention", normalize=False), new_head=True)
    randomize(ours)
    ids, attention, segments = inputs(batch, mask, VOCABULARY)
    with torch.no_grad():
        hidden = ours.encoder(ids, attention, segments)
        rows = zip(hidden, attention.bool(), strict=True)
        expected = torch.stack([attention_pooled(*row, ours.head.pooling.score) for row in rows])
        assert float((ours(ids, attention, segments) - expected).abs().max()) <= TOLERANCE


def test_attention_pooling_is_saved_beside_its_settings(
    saved: Saved, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    """The encoder is a plain BertModel to transformers; the score's weights are in the pooling's folder."""
    _, source = saved("bert", "fill-mask")
    task = SentenceEmbedding(dimensions=24, pooling="attention")
    with pytest.raises(CheckpointError, match=r"2 missing: pooling\.score\.weight, pooling\.score\.bias"):
        load_model(source, task)
    ours = load_model(source, task, new_head=True)
    folder = save(ours, tmp_path / "saved", classifier_checkpoint)
    assert load_file(folder / "1_Pooling" / "model.safetensors").keys() == {"linear.weight", "linear.bias"}
    _, report = transformers.BertModel.from_pretrained(folder, output_loading_info=True)
    assert {key for key in report["missing_keys"] if not key.startswith("pooler.")} == set()
    assert not report["unexpected_keys"]
