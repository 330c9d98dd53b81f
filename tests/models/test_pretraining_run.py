"""Pre-training runs: every objective learns, loads in transformers, and goes on after an interruption."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bert_models import FAMILIES, TrainingError, load_model, open_checkpoint
from bert_models.heads import MaskedLanguageHead
from bert_models.pretraining import PretrainSettings, Start, TextFiles, pretrain
from bert_models.pretraining import model as models
from bert_models.pretraining.model import MaskedLanguageModel, ReplacedTokenModel, generator_config
from bert_models.tokenizer_files import read_tokenizer
from bert_models.weights import read_weights
from bert_runtime.tasks import FillMask

from .toy import inputs

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILY = {"mlm": "bert", "mlm+nsp": "bert", "mlm+sop": "albert", "rtd": "electra"}

NSP = "next-sentence-prediction"

MASK = FillMask(mask_token="[MASK]", mask_token_id=4)


@pytest.fixture(autouse=True)
def toy_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size of every family that trains in a second."""
    for name in set(FAMILY.values()):
        sizes = {
            "num_layers": 2,
            "hidden_size": 32,
            "num_heads": 4,
            "intermediate_size": 64,
            "max_positions": 64,
            "type_vocab_size": 2,
            **({"embedding_size": 16} if name != "bert" else {}),
            **({"num_layer_groups": 1} if name == "albert" else {}),
        }
        monkeypatch.setitem(FAMILIES, name, replace(FAMILIES[name], sizes={"toy": sizes}))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TextFiles:
    """Forty documents of sentences whose words follow each other."""
    text = "my card is lost at the bank please help good morning where is your train it was late see you later"
    words = text.split()
    lines = []
    for document in range(40):
        for sentence in range(6):
            start = (document * 5 + sentence * 3) % len(words)
            lines.append(" ".join((words * 2)[start : start + 5 + sentence % 3]))
        lines.append("")
    file = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    return TextFiles([file])


@pytest.fixture(scope="module")
def tokenizer(toy_vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that any family reads."""
    folder = tmp_path_factory.mktemp("tokenizer")
    read_tokenizer(toy_vocab, "bert").save(str(folder / "tokenizer.json"))
    return folder


def settings(objective: str, **changes: Any) -> PretrainSettings:
    values: dict[str, Any] = {
        "objective": objective, "steps": 24, "batch_size": 8, "lr": 5e-3, "max_tokens": 32, "dev_share": 0.2,
        "eval_every": 8, "precision": "fp32",
    }  # fmt: skip
    return PretrainSettings(**{**values, **changes})


def run(objective: str, corpus: TextFiles, vocab: Path, output: Path, **options: Any) -> dict[str, Any]:
    start = Start(family=FAMILY[objective], size="toy", tokenizer=vocab)
    chosen = options.pop("settings", settings(objective))
    return pretrain(start, corpus, output, chosen, cache=output.parent / "cache", **options)


@pytest.mark.parametrize("objective", FAMILY)
def test_every_objective_learns(objective: str, corpus: TextFiles, tokenizer: Path, tmp_path: Path) -> None:
    report = run(objective, corpus, tokenizer, tmp_path / "out", settings=settings(objective, steps=64, eval_every=32))
    first, *_, last = report["measured"]
    assert [first["step"], last["step"]] == [32, 64]
    assert last["mlm_loss"] < first["mlm_loss"] < 5.1  # the logarithm of the vocabulary's size
    assert (tmp_path / "out" / "training.json").is_file()
    assert not (tmp_path / "out" / "training").exists()
    if objective == "rtd":
        assert 0.02 < last["replaced_share"] < 0.15
        assert last["rtd_loss"] < 0.6


@pytest.mark.parametrize(
    ("objective", "architecture", "outputs"),
    [
        ("mlm", "BertForMaskedLM", {"fill-mask": "logits"}),
        ("mlm+nsp", "BertForPreTraining", {"fill-mask": "prediction_logits", NSP: "seq_relationship_logits"}),
        ("mlm+sop", "AlbertForPreTraining", {"fill-mask": "prediction_logits", NSP: "sop_logits"}),
        ("rtd", "ElectraForPreTraining", {"replaced-token-detection": "logits"}),
    ],
)  # fmt: skip
def test_transformers_loads_what_was_pretrained(
    objective: str, architecture: str, outputs: dict[str, str], corpus: TextFiles, tokenizer: Path, tmp_path: Path
) -> None:
    run(objective, corpus, tokenizer, tmp_path / "out", settings=settings(objective, steps=2, eval_every=2))
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.values["architectures"] == [architecture]
    theirs, report = getattr(transformers, architecture).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids, attention, segments = inputs(3, "random", checkpoint.config.vocab_size)
    with torch.no_grad():
        expected = theirs.eval()(input_ids=ids, attention_mask=attention, token_type_ids=segments)
        for task, name in outputs.items():
            found = load_model(checkpoint, checkpoint.task(task))(ids, attention, segments)
            assert float((found - expected[name]).abs().max()) < 1e-5


def test_the_generator_is_a_checkpoint_of_its_own(corpus: TextFiles, tokenizer: Path, tmp_path: Path) -> None:
    run("rtd", corpus, tokenizer, tmp_path / "out", settings=settings("rtd", steps=2, eval_every=2))
    generator = open_checkpoint(tmp_path / "out" / "generator")
    assert generator.task().name == "fill-mask"
    assert (generator.config.hidden_size, generator.config.embedding_width) == (8, 16)
    theirs = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "out" / "generator").eval()
    ids, attention, segments = inputs(2, "random", generator.config.vocab_size)
    with torch.no_grad():
        found = load_model(generator, generator.task())(ids, attention, segments)
        expected = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments).logits
    assert float((found - expected).abs().max()) < 1e-5
    own, shared = (read_weights(tmp_path / "out" / name) for name in ("generator", "."))
    key = "electra.embeddings.word_embeddings.weight"
    assert torch.equal(own[key], shared[key])


class KilledError(Exception):
    """Stands for a kill."""


@pytest.fixture(params=[9, 17, 23])
def killed_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Ends the process in the middle of a step."""
    from bert_models.pretraining.module import Pretraining

    original = Pretraining.training_step

    def step(self: Any, batch: Any, index: int) -> Any:
        if self.global_step == request.param:
            raise KilledError
        return original(self, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(Pretraining, "training_step", step)
        yield patch


@pytest.mark.parametrize("objective", ["mlm+nsp", "rtd"])
def test_a_resumed_run_ends_where_a_whole_one_does(
    objective: str, killed_at: pytest.MonkeyPatch, corpus: TextFiles, tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(KilledError):
        run(objective, corpus, tokenizer, tmp_path / "parts")
    killed_at.undo()
    with pytest.raises(TrainingError, match="go on with --resume or start over with --force"):
        run(objective, corpus, tokenizer, tmp_path / "parts")
    parts = run(objective, corpus, tokenizer, tmp_path / "parts", resume=True)
    whole = run(objective, corpus, tokenizer, tmp_path / "whole")
    assert parts["measured"] == whole["measured"]
    found, expected = (read_weights(tmp_path / name) for name in ("parts", "whole"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_run_is_not_resumed_with_another_corpus_or_seed(
    killed_at: pytest.MonkeyPatch, corpus: TextFiles, tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(KilledError):
        run("mlm", corpus, tokenizer, tmp_path / "out")
    killed_at.undo()
    other = tmp_path / "other.txt"
    other.write_text("my card is lost\n\n" * 60, encoding="utf-8")
    with pytest.raises(TrainingError, match="the interrupted run was another one: corpus was"):
        run("mlm", TextFiles([other]), tokenizer, tmp_path / "out", resume=True)
    with pytest.raises(TrainingError, match="the interrupted run was another one: seed was 0, is now 1"):
        run("mlm", corpus, tokenizer, tmp_path / "out", resume=True, settings=settings("mlm", seed=1))


def test_a_checkpoint_is_trained_further(corpus: TextFiles, tokenizer: Path, tmp_path: Path) -> None:
    run("mlm", corpus, tokenizer, tmp_path / "first", settings=settings("mlm", steps=64, eval_every=64))
    start = Start(base=tmp_path / "first")
    chosen = settings("mlm", steps=8, lr=1e-3, seed=0)
    report = pretrain(start, corpus, tmp_path / "second", chosen, cache=tmp_path / "cache")
    before = json.loads((tmp_path / "first" / "training.json").read_text())["measured"][-1]["mlm_loss"]
    assert report["measured"][-1]["mlm_loss"] < before + 0.1


def test_a_sample_that_hits_the_token_replaces_nothing(toy_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(toy_config, family="electra")
    model = ReplacedTokenModel(config, MASK).eval()
    original = torch.tensor([[2, 10, 11, 12, 13, 3, 0]])
    masked = torch.tensor([[2, 4, 11, 4, 13, 3, 0]])
    labels = torch.tensor([[-100, 10, -100, 12, -100, -100, -100]])
    attention = (original != 0).long()
    monkeypatch.setattr(models, "sample", lambda logits: torch.tensor([10, 40]))
    measured = model.measure(masked, attention, torch.zeros_like(masked), labels, torch.zeros(1, dtype=torch.int64))
    assert (int(measured["replaced_share"].total), int(measured["replaced_share"].number)) == (1, 6)
    corrupted = torch.tensor([[2, 10, 11, 40, 13, 3, 0]])
    logits = model.discriminator(corrupted, attention, torch.zeros_like(masked))[0, :6]
    truth = torch.tensor([0, 0, 0, 1, 0, 0]).float()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="sum")
    assert measured["rtd_loss"].total.item() == pytest.approx(expected.item())
    loss = model.loss(measured)
    parts = measured["mlm_loss"].total / 2 + 50 * measured["rtd_loss"].total / 6
    assert loss.item() == pytest.approx(parts.item())


def test_generator_and_discriminator_share_their_embeddings(toy_config: Any) -> None:
    model = ReplacedTokenModel(replace(toy_config, family="electra"), MASK)
    head = model.generator.head
    assert isinstance(head, MaskedLanguageHead)
    assert head.tokens.weight is model.discriminator.encoder.embeddings.token.weight
    assert model.generator.encoder.embeddings.position is model.discriminator.encoder.embeddings.position
    assert generator_config(toy_config).embedding_size == toy_config.hidden_size


def test_the_head_scores_only_what_is_predicted(toy_config: Any) -> None:
    model = MaskedLanguageModel(toy_config, MASK, pairs=True).eval()
    ids, attention, segments = inputs(3, "full", toy_config.vocab_size)
    labels = torch.full_like(ids, -100)
    labels[:, 3:6] = ids[:, 3:6]
    measured = model.measure(ids, attention, segments, labels, torch.tensor([0, 1, 0]))
    logits = model.model(ids, attention, segments)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    assert measured["mlm_loss"].total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert int(measured["mlm_loss"].number) == 9
    assert int(measured["sentence_loss"].number) == 3


@pytest.mark.parametrize(
    ("family", "objective", "message"),
    [
        ("albert", "rtd", "albert has no head for replaced-token-detection, which rtd needs; its objectives are "),
        ("electra", "mlm+nsp", "electra has no head for next-sentence-prediction"),
        ("gpt", "mlm", "expected a family of bert, "),
    ],
)  # fmt: skip
def test_objectives_that_a_family_cannot_learn(
    family: str, objective: str, message: str, corpus: TextFiles, tokenizer: Path, tmp_path: Path
) -> None:
    start = Start(family=family, size="toy", tokenizer=tokenizer)
    with pytest.raises(TrainingError, match=message):
        pretrain(start, corpus, tmp_path / "out", settings(objective), cache=tmp_path / "cache")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "start", [{}, {"family": "bert"}, {"family": "bert", "size": "toy", "tokenizer": "t", "base": "b"}]
)
def test_what_to_start_from_must_be_clear(start: dict[str, str]) -> None:
    with pytest.raises(
        TrainingError, match="either a family, a size and a tokenizer to start from, or a base checkpoint"
    ):
        Start(**start)


def test_all_bad_settings_are_named_at_once() -> None:
    with pytest.raises(TrainingError) as error:
        PretrainSettings(steps=0, lr=-1, dev_share=1, eval_every=0, precision="fp8")
    for name in ("steps", "lr", "dev_share", "eval_every", "precision"):
        assert name in str(error.value)
