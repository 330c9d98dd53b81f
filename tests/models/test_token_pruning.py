"""Token pruning in PyTorch: which tokens stay, and which models and tasks refuse it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models

from bert_models import FAMILIES, ConfigError, EncoderConfig, TaskModel, load_model, open_checkpoint, save_model
from bert_models.pruned_checkpoint import with_token_pruning
from bert_models.pruning_schedule import TokenPruning, kept_tokens
from bert_models.token_pruning import keep_tokens, without_pruning
from bert_runtime.tasks import (
    FeatureExtraction,
    FillMask,
    NextSentencePrediction,
    QuestionAnswering,
    Reranking,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

from .toy import randomize

CONFIG = EncoderConfig(
    family="bert", vocab_size=101, hidden_size=24, num_layers=3, num_heads=4, intermediate_size=37, max_positions=80,
    type_vocab_size=2, token_pruning=TokenPruning.parse("1:0.5,2:0.25"),
)  # fmt: skip
CLASSIFIER = TextClassification(labels=("a", "b"))


def toy_model(task: Task = CLASSIFIER) -> TaskModel:
    """Return a model with random weights that prunes tokens."""
    torch.manual_seed(0)
    model = TaskModel(CONFIG, task).eval()
    randomize(model)
    return model


@pytest.mark.parametrize(
    ("length", "percent", "expected"),
    [(100, 50, 50), (101, 50, 51), (70, 25, 18), (40, 25, 16), (16, 50, 16), (3, 50, 3), (0, 50, 1)],
)
def test_number_of_kept_tokens(length: int, percent: int, expected: int) -> None:
    assert kept_tokens(length, percent) == expected


def test_schedule_survives_text() -> None:
    assert TokenPruning.parse(" 2:0.5, 4:.25").steps == ((2, 50), (4, 25))
    assert str(TokenPruning.parse("2:.5,4:0.25")) == "2:0.5,4:0.25"


@pytest.mark.parametrize(
    "text",
    ["", "2", "2:1.0", "2:0", "2:50", "a:0.5", "2:0.5,", "0:0.5", "2:0.5,2:0.4", "4:0.5,2:0.4", "2:0.4,4:0.5", None, 3],
)
def test_malformed_schedules_are_refused(text: object) -> None:
    with pytest.raises(ConfigError, match=r"found .*write layer:share, such as 2:0\.5,4:0\.25"):
        TokenPruning.parse(text)


def test_kept_tokens_have_the_most_attention_of_the_first() -> None:
    model = toy_model()
    torch.manual_seed(1)
    hidden, mask = torch.randn(1, 40, 24), torch.ones(1, 40, dtype=torch.long)
    layer = model.encoder.layers[0].attention
    indices, kept_mask = keep_tokens(layer, hidden, mask, mask, 50)
    heads = [part.view(40, 4, 6).transpose(0, 1) for part in (layer.query(hidden[0]), layer.key(hidden[0]))]
    attention = (heads[0][:, :1] @ heads[1].transpose(1, 2) * 6**-0.5).softmax(dim=-1).mean(dim=0)[0]
    attention[0] = 1
    assert indices[0].tolist() == sorted(attention.topk(20).indices.tolist())
    assert kept_mask.all()


def test_tokens_of_equal_importance_stay_by_position() -> None:
    layer = toy_model().encoder.layers[0].attention
    mask = torch.ones(1, 40, dtype=torch.long)
    assert keep_tokens(layer, torch.ones(1, 40, 24), mask, mask, 50).indices[0].tolist() == list(range(20))


def test_padding_on_the_left_takes_no_place_of_a_real_token() -> None:
    layer = toy_model().encoder.layers[0].attention
    mask = torch.tensor([[0] * 39 + [1], [1] * 40])
    indices, kept_mask = keep_tokens(layer, torch.ones(2, 40, 24), mask, mask, 50)
    assert indices[0, kept_mask[0]].tolist() == [39]


def test_answers_do_not_depend_on_the_batch() -> None:
    model = toy_model()
    lengths = (70, 40, 20, 3)
    ids = torch.randint(101, (4, 70), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(70) < torch.tensor(lengths)[:, None]).long()
    with torch.no_grad():
        batch = model(ids, mask)
        alone = torch.cat([model(ids[i : i + 1, :n], mask[i : i + 1, :n]) for i, n in enumerate(lengths)])
        sizes = [hidden.shape[1] for hidden in model.encoder.hidden_states(ids, mask)]
    torch.testing.assert_close(batch, alone, rtol=0, atol=1e-5)
    assert sizes == [70, 35, 18, 18]


def test_short_texts_keep_all_tokens_and_without_pruning_all_do() -> None:
    model = toy_model()
    ids = torch.randint(101, (1, 60), generator=torch.Generator().manual_seed(0))
    ones = torch.ones_like(ids)
    with torch.no_grad():
        short, long = model(ids[:, :16], ones[:, :16]), model(ids, ones)
        with without_pruning(model):
            assert torch.equal(model(ids[:, :16], ones[:, :16]), short)
            assert not torch.allclose(model(ids, ones), long, atol=1e-4)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_reach_all_parameters(*, checkpointing: bool) -> None:
    model = toy_model().train()
    model.encoder.checkpointing = checkpointing
    ids = torch.randint(101, (2, 60), generator=torch.Generator().manual_seed(0))
    model(ids, torch.ones_like(ids), torch.zeros_like(ids)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    "task",
    [
        CLASSIFIER,
        NextSentencePrediction(labels=("yes", "no")),
        Reranking(),
        SentenceEmbedding(dimensions=24, pooling="cls"),
    ],
    ids=lambda task: task.name,
)
def test_tasks_that_read_the_first_token_take_a_schedule(task: Task) -> None:
    assert TaskModel(CONFIG, task).encoder.token_pruning == CONFIG.token_pruning


@pytest.mark.parametrize(
    "task",
    [
        TokenClassification(labels=("a", "b")),
        QuestionAnswering(),
        FillMask(mask_token_id=3, mask_token="[MASK]"),
        FeatureExtraction(layers=(3,), num_layers=3, hidden_size=24),
        SentenceEmbedding(dimensions=24, pooling="mean"),
    ],
    ids=lambda task: task.name,
)
def test_tasks_that_read_every_token_refuse_a_schedule(task: Task) -> None:
    with pytest.raises(ConfigError, match=rf"1:0\.5,2:0\.25.*text-classification.*{task.name}.* reads every token"):
        TaskModel(CONFIG, task)


def test_classifiers_that_pool_the_mean_refuse_a_schedule() -> None:
    with pytest.raises(ConfigError, match="text-classification with mean pooling reads every token"):
        TaskModel(replace(CONFIG, classifier_pooling="mean"), CLASSIFIER)


@pytest.mark.parametrize("family", ["mpnet", "modernbert", "nomic_bert", "deberta-v2"])
def test_families_with_positions_in_attention_refuse_a_schedule(family: str) -> None:
    with pytest.raises(ConfigError, match=f"positions that the embeddings alone add.*{family}"):
        FAMILIES[family].preset("base", token_pruning=TokenPruning.parse("2:0.5"))


def test_the_last_layer_cannot_prune() -> None:
    with pytest.raises(ConfigError, match="expected token pruning in the layers 1 to 2, found layer 3"):
        replace(CONFIG, token_pruning=TokenPruning.parse("3:0.5"))


def test_checkpoints_keep_the_schedule(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(tokenizer / "tokenizer.json"))
    (saved := tmp_path / "saved").mkdir()
    model = toy_model()
    save_model(model, saved, tokenizer_from=tokenizer)
    source = open_checkpoint(saved)
    assert source.config == CONFIG
    ids = torch.arange(60)[None]
    with torch.no_grad():
        assert torch.equal(load_model(source, CLASSIFIER)(ids, ids > -1), model(ids, ids > -1))
    assert with_token_pruning(source, None).config == CONFIG
    assert with_token_pruning(source, "none").config.token_pruning is None
    assert str(with_token_pruning(source, "1:0.3").config.token_pruning) == "1:0.3"
