"""Rerankers in the folders that releases of sentence-transformers' `CrossEncoder` write, and in ours."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bert_models import Checkpoint, CheckpointError, TaskModel, load_model, open_checkpoint, save_model
from bert_models.families import FAMILIES
from bert_runtime.tasks import Reranking, SentenceEmbedding, TextClassification

from .toy import BATCHES, MASKS, TOLERANCE, inputs, randomize, save_reference
from .toy_families import CONFIGS, with_first_token
from .toy_families import reference as toy_reference
from .toy_heads import assert_survives

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
SETTINGS = "config_sentence_transformers.json"
MODULAR = Reranking(
    activation="identity",
    pooling="mean",
    dense_sizes=(13, 1),
    dense_activations=("gelu", "identity"),
    dense_norms=(True, False),
)


def classifier(folder: Path, family: str = "bert", labels: int = 1, **config: Any) -> Path:
    """Save a classifier of transformers, with further keys in `config.json`."""
    save_reference(toy_reference(family, "ForSequenceClassification", num_labels=labels), folder)
    return update(folder, "config.json", **config)


def update(folder: Path, name: str, **values: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | values))
    return folder


def with_modules(folder: Path, kinds: dict[str, Any], **settings: Any) -> Path:
    """Write the files of a `CrossEncoder` of release 6.2 with modules behind the encoder, given by their settings."""
    types = {
        "Transformer": "base.modules.transformer", "Dense": "base.modules.dense",
        "Pooling": "sentence_transformer.modules.pooling", "LayerNorm": "sentence_transformer.modules.layer_norm",
        "LogitScore": "cross_encoder.modules.logit_score", "Normalize": "base.modules.normalize",
    }  # fmt: skip
    modules: list[dict[str, Any]] = []
    for index, (path, config) in enumerate({"": {}, **kinds}.items()):
        kind = path.partition("_")[2] or "Transformer"
        modules.append(
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{types[kind]}.{kind}"}
        )
        if path:
            (folder / path).mkdir()
            update(folder / path, "config.json", **config)
    (folder / "modules.json").write_text(json.dumps(modules))
    values = {"model_type": "CrossEncoder", "activation_fn": SIGMOID, "prompts": {}, "default_prompt_name": None}
    return update(folder, SETTINGS, **values | settings)


def dense(inputs: int, outputs: int, activation: str, **settings: Any) -> dict[str, Any]:
    return {
        "in_features": inputs, "out_features": outputs, "bias": True, "activation_function": activation, **settings
    }  # fmt: skip


@cache
def saved_reranker(family: str, folder: Path) -> tuple[Any, TaskModel]:
    """Return a random classifier of one label by transformers, and ours with its weights."""
    theirs: Any = toy_reference(family, "ForSequenceClassification", num_labels=1)
    checkpoint = open_checkpoint(save_reference(theirs, folder / family))
    return theirs, load_model(checkpoint, checkpoint.task("rerank"))


@pytest.fixture(scope="module")
def rerankers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rerankers")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reranks_with_its_classifier_as_transformers_does(
    family: str, batch: int, mask: str, rerankers: Path
) -> None:
    theirs, ours = saved_reranker(family, rerankers)
    ids, attention, segments = inputs(batch, mask, CONFIGS[family][2]["vocab_size"])
    attention = with_first_token(family, attention)
    extra = {"token_type_ids": segments} if ours.config.uses_segment_ids else {}
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=attention, **extra).logits
        found = ours(ids, attention, segments)
    assert found.shape == (batch, 1)
    assert float((found - expected).abs().max()) <= TOLERANCE


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.1.0"}}, "identity"),
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, "sigmoid"),
        ({"sbert_ce_default_activation_function": IDENTITY}, "identity"),
    ],
)
def test_old_folders_say_in_the_configuration_what_they_are(
    config: dict[str, Any], activation: str, tmp_path: Path
) -> None:
    assert open_checkpoint(classifier(tmp_path, **config)).task() == Reranking(activation=activation)


def test_new_folders_have_settings_of_their_own(tmp_path: Path) -> None:
    folder = with_modules(classifier(tmp_path), {}, activation_fn=IDENTITY)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.task() == Reranking(activation="identity")
    load_model(checkpoint, checkpoint.task())
    assert checkpoint.task("sentence-embedding") == SentenceEmbedding(dimensions=24)


def test_a_classifier_of_one_number_reranks_when_asked(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(classifier(tmp_path))
    assert checkpoint.task() == TextClassification(labels=("LABEL_0",), problem_type="regression")
    assert checkpoint.task("rerank") == Reranking()


@pytest.mark.parametrize("with_settings", [True, False])
def test_a_head_of_several_labels_is_a_classifier(with_settings: bool, tmp_path: Path) -> None:
    folder = classifier(tmp_path, labels=3)
    if with_settings:
        with_modules(folder, {}, activation_fn=IDENTITY)
    checkpoint = open_checkpoint(folder)
    assert isinstance(checkpoint.task(), TextClassification)
    with pytest.raises(
        CheckpointError, match="expected a head of one label for rerank, found 3; export it with --task"
    ):
        checkpoint.task("rerank")


def test_embedders_and_language_models_have_no_head_for_it(tmp_path: Path) -> None:
    modules = {"1_Pooling": {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}}
    embedder = with_modules(classifier(tmp_path / "embedder"), modules, model_type="SentenceTransformer")
    with pytest.raises(CheckpointError, match=r"expected a CrossEncoder, found .* \(Transformer, Pooling\).*train one"):
        open_checkpoint(embedder).task("rerank")
    checkpoint = open_checkpoint(save_reference(toy_reference("bert", "ForMaskedLM"), tmp_path / "language_model"))
    with pytest.raises(
        CheckpointError, match=r"no rerank head: .* hold the head of fill-mask; export it with --task fill"
    ):
        load_model(checkpoint, checkpoint.task("rerank"))


def test_the_weights_decide_how_many_labels_there_are(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(classifier(tmp_path, labels=2, id2label={"0": "relevance"}))
    with pytest.raises(
        CheckpointError, match=r"one output for rerank, found 2 \(classifier.weight of shape \[2, 24\]\)"
    ):
        load_model(checkpoint, checkpoint.task("rerank"))


@pytest.fixture
def modular(tmp_path: Path) -> Path:
    """A folder with a head of modules: the mean of the tokens, a dense layer with GELU and LayerNorm, and the score."""
    folder = save_reference(toy_reference("bert", "Model"), tmp_path / "modular")
    gelu, score = dense(24, 13, "torch.nn.modules.activation.GELU"), dense(13, 1, IDENTITY, bias=False)
    kinds: dict[str, Any] = {
        "1_Pooling": {"embedding_dimension": 24, "pooling_mode": "mean", "include_prompt": True},
        "2_Dense": gelu, "3_LayerNorm": {"dimension": 13}, "4_Dense": score | {"module_output_name": "scores"},
    }  # fmt: skip
    with_modules(folder, kinds, activation_fn=IDENTITY)
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "2_Dense": {"linear.weight": (13, 24), "linear.bias": (13,)},
        "3_LayerNorm": {"norm.weight": (13,), "norm.bias": (13,)},
        "4_Dense": {"linear.weight": (1, 13)},
    }
    for name, tensors in shapes.items():
        values = {key: torch.randn(shape, generator=generator) for key, shape in tensors.items()}
        save_file(values, folder / name / "model.safetensors")
    return folder


def modular_scores(folder: Path, hidden: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
    """Compute the head of `modular` from its files."""
    weights = {name: load_file(folder / name / "model.safetensors") for name in ("2_Dense", "3_LayerNorm", "4_Dense")}
    mask = attention.unsqueeze(-1)
    pooled = (hidden * mask).sum(1) / mask.sum(1)
    vector = nn.functional.gelu(pooled @ weights["2_Dense"]["linear.weight"].T + weights["2_Dense"]["linear.bias"])
    norm = weights["3_LayerNorm"]
    vector = nn.functional.layer_norm(vector, (13,), norm["norm.weight"], norm["norm.bias"])
    return vector @ weights["4_Dense"]["linear.weight"].T


def test_a_head_of_modules_gives_the_same_scores(modular: Path) -> None:
    checkpoint = open_checkpoint(modular)
    assert checkpoint.task() == MODULAR
    ours, theirs = load_model(checkpoint, MODULAR), toy_reference("bert", "Model")
    ids, attention, segments = inputs(3, "random")
    with torch.no_grad():
        hidden = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments).last_hidden_state
        found = ours(ids, attention, segments)
    assert float((found - modular_scores(modular, hidden, attention)).abs().max()) <= TOLERANCE
    assert len({checkpoint.sha256(), open_checkpoint(_changed(modular)).sha256()}) == 2


def _changed(folder: Path) -> Path:
    path = folder / "4_Dense" / "model.safetensors"
    save_file({key: tensor + 1 for key, tensor in load_file(path).items()}, path)
    return folder


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert"])
@pytest.mark.parametrize("task", [Reranking(activation="identity"), Reranking(long_documents="truncate"), MODULAR])
def test_saved_rerankers_are_read_unchanged(
    family: str, task: Reranking, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    sizes = {"hidden_size": 24, "num_layers": 2, "num_heads": 4, "intermediate_size": 37, "vocab_size": 211}
    ours = TaskModel(FAMILIES[family].preset("base", **sizes), task).eval()
    randomize(ours)
    (tmp_path / "saved").mkdir()
    save_model(ours, tmp_path / "saved", tokenizer_from=classifier_checkpoint)
    assert_survives(ours, tmp_path / "saved")


Change = Callable[[Path], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: update(f, SETTINGS, activation_fn="torch.nn.modules.activation.ReLU"),
            "expected an activation_fn of",
        ),
        (lambda f: update(f, SETTINGS, default_prompt_name="query"), "expected no default_prompt_name, found 'query'"),
        (
            lambda f: update(f / "4_Dense", "config.json", out_features=3),
            "expected out_features of 1 for rerank, found 3",
        ),
        (lambda f: update(f / "2_Dense", "config.json", use_residual=True), "no use_residual"),
        (
            lambda f: update(f / "1_Pooling", "config.json", pooling_mode="lasttoken"),
            "expected exactly one pooling_mode",
        ),
        (
            lambda f: _reorder(f, 0, 1, 2, 4, 3),
            "expected the modules Transformer, Pooling and Dense.*found Transformer, ",
        ),
        (lambda f: _reorder(f, 0, 1, 3, 2, 4), "expected the modules Transformer, Pooling and Dense"),
        (lambda f: _reorder(f, 0, 2), "expected the modules Transformer, Pooling and Dense"),
    ],
)
def test_unsupported_folders_are_refused(change: Change, message: str, modular: Path) -> None:
    change(modular)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(modular).task()


def _reorder(folder: Path, *order: int) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([modules[index] for index in order]))


def test_training_starts_from_a_trained_head_or_a_new_one(tmp_path: Path, modular: Path) -> None:
    def head(checkpoint: Checkpoint) -> TaskModel:
        torch.manual_seed(0)
        task = checkpoint.task("rerank") if checkpoint.has_relevance_head() else Reranking()
        return load_model(checkpoint, task, new_head=True)

    one, three = (open_checkpoint(classifier(tmp_path / str(labels), labels=labels)) for labels in (1, 3))
    assert (one.has_relevance_head(), three.has_relevance_head()) == (True, False)
    assert torch.equal(head(one).head.output.weight, load_model(one, one.task()).head.output.weight)
    assert head(three).head.output.weight.shape == (1, 24)
    found = head(open_checkpoint(modular)).head.layers[-1].linear.weight
    assert torch.equal(found, load_file(modular / "4_Dense" / "model.safetensors")["linear.weight"])
