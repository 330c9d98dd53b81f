"""Pre-training runs: every objective trains, loads in transformers, and resumes after an interruption."""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bert_models import FAMILIES, TrainingError, load_model, open_checkpoint
from bert_models.corpus import TextFiles
from bert_models.pretraining import InitialModel, PretrainSettings, pretrain
from bert_models.pretraining.model import MaskedLanguageModel
from bert_models.tokenizer_files import read_tokenizer
from bert_models.weights import read_weights

from ..toy import inputs

FAMILY = {"mlm": "bert", "mlm+nsp": "bert", "mlm+sop": "albert", "rtd": "electra"}

NSP = "next-sentence-prediction"


@pytest.fixture(autouse=True)
def toy_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every family a size that trains in a second."""
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
    """Forty documents of sentences whose words come in a fixed order."""
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
        "objective": objective, "steps": 24, "batch_size": 8, "lr": 5e-3, "max_tokens": 32, "dev_fraction": 0.2,
        "eval_every": 8, "precision": "fp32",
    }  # fmt: skip
    return PretrainSettings(**{**values, **changes})


def run(objective: str, corpus: TextFiles, vocab: Path, output: Path, **options: Any) -> dict[str, Any]:
    source = InitialModel(family=FAMILY[objective], size="toy", tokenizer=vocab)
    chosen = options.pop("settings", settings(objective))
    return pretrain(source, corpus, output, chosen, cache=output.parent / "cache", **options)


def metrics(folder: Path) -> list[dict[str, float]]:
    """Return the rows of the log without empty columns."""
    with (folder / "logs" / "metrics.csv").open(newline="") as stream:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(stream)]


@pytest.mark.parametrize("objective", FAMILY)
def test_every_objective_lowers_its_loss(objective: str, corpus: TextFiles, tokenizer: Path, tmp_path: Path) -> None:
    report = run(objective, corpus, tokenizer, tmp_path / "out", settings=settings(objective, steps=64, eval_every=32))
    first, *_, last = report["measured"]
    assert [first["step"], last["step"]] == [32, 64]
    assert last["mlm_loss"] < first["mlm_loss"] < 5.1  # the logarithm of the vocabulary's size
    assert (tmp_path / "out" / "training.json").is_file()
    assert not (tmp_path / "out" / "training").exists()
    if objective == "rtd":
        assert 0.02 < last["replaced_share"] < 0.15


def test_discriminator_beats_the_majority_class(
    corpus: TextFiles, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calling every token original is right for all tokens that are not replaced."""
    sizes = {"hidden_size": 64, "embedding_size": 64, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    electra = FAMILIES["electra"]
    monkeypatch.setitem(FAMILIES, "electra", replace(electra, sizes={"toy": {**electra.sizes["toy"], **sizes}}))
    source = InitialModel(family="electra", size="toy", tokenizer=tokenizer, initializer_range=0.1)
    chosen = settings("rtd", steps=400, eval_every=400, batch_size=16, lr=2e-3)
    last = pretrain(source, corpus, tmp_path / "out", chosen, cache=tmp_path / "cache")["measured"][-1]
    assert last["rtd_accuracy"] > 1 - last["replaced_share"] + 0.02


@pytest.mark.parametrize(
    ("objective", "losses"),
    [("mlm", {}), ("mlm+sop", {"mlm_loss": 1.0, "sentence_loss": 1.0}), ("rtd", {"mlm_loss": 1.0, "rtd_loss": 50.0})],
)
def test_every_step_and_evaluation_is_logged(
    objective: str, losses: dict[str, float], corpus: TextFiles, tokenizer: Path, tmp_path: Path
) -> None:
    """Also the evaluation after the last step, which is no multiple of `eval_every`."""
    chosen = settings(objective, steps=10, eval_every=4, gradient_accumulation_steps=2, batch_size=4)
    report = run(objective, corpus, tokenizer, tmp_path / "out", settings=chosen)
    rows = metrics(tmp_path / "out")
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == list(range(10))
    assert {name for row in steps for name in row} == {"step", "loss", "lr", *losses}
    assert (steps[0]["lr"], max(row["lr"] for row in steps)) == (0, 5e-3)
    for row in steps if losses else []:
        assert row["loss"] == pytest.approx(sum(weight * row[name] for name, weight in losses.items()))
    measured = [row for row in rows if "dev_mlm_loss" in row]
    for row, entry in zip(measured, report["measured"], strict=True):
        expected = {f"dev_{name}": value for name, value in entry.items() if name not in ("step", "train_loss")}
        assert row == pytest.approx({"step": entry["step"], **expected})
    assert [row["step"] for row in measured] == [4, 8, 10]
    assert report["measured"][0]["train_loss"] == pytest.approx(sum(row["loss"] for row in steps[:4]) / 4)
    assert (tmp_path / "out" / "training.png").read_bytes().startswith(b"\x89PNG")


def test_next_sentences_are_evaluated_whatever_fraction_is_held_out(
    corpus: TextFiles, tokenizer: Path, tmp_path: Path
) -> None:
    """The default holds one of 40 documents out, and a wrong continuation needs another one."""
    report = run("mlm+nsp", corpus, tokenizer, tmp_path / "out", settings=settings("mlm+nsp", dev_fraction=0.01))
    assert report["corpus"]["documents"] == {"train": 38, "dev": 2}
    assert "sentence_accuracy" in report["measured"][-1]


def test_too_few_batches_for_a_step_are_rejected(corpus: TextFiles, tokenizer: Path, tmp_path: Path) -> None:
    chosen = settings("mlm", gradient_accumulation_steps=100)
    with pytest.raises(TrainingError, match="of 8 sequences in an epoch are too few for a step of 100; lower --accum"):
        run("mlm", corpus, tokenizer, tmp_path / "out", settings=chosen)


@pytest.mark.parametrize(
    ("objective", "architecture", "outputs"),
    [
        ("mlm", "BertForMaskedLM", {"fill-mask": "logits"}),
        ("mlm+nsp", "BertForPreTraining", {"fill-mask": "prediction_logits", NSP: "seq_relationship_logits"}),
        ("mlm+sop", "AlbertForPreTraining", {"fill-mask": "prediction_logits", NSP: "sop_logits"}),
        ("rtd", "ElectraForPreTraining", {"replaced-token-detection": "logits"}),
    ],
)  # fmt: skip
def test_transformers_loads_pretrained_checkpoints(
    objective: str, architecture: str, outputs: dict[str, str], corpus: TextFiles, tokenizer: Path, tmp_path: Path
) -> None:
    run(objective, corpus, tokenizer, tmp_path / "out", settings=settings(objective, steps=2, eval_every=2))
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.config_json["architectures"] == [architecture]
    theirs, report = getattr(transformers, architecture).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids, attention, segments = inputs(3, "random", checkpoint.config.vocab_size)
    with torch.no_grad():
        expected = theirs.eval()(input_ids=ids, attention_mask=attention, token_type_ids=segments)
        for task, name in outputs.items():
            found = load_model(checkpoint, checkpoint.task(task))(ids, attention, segments)
            assert float((found - expected[name]).abs().max()) < 1e-5


def test_generator_is_saved_as_a_checkpoint(corpus: TextFiles, tokenizer: Path, tmp_path: Path) -> None:
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
    """Stands in for a kill; holds the rows of the log that are on disk at that moment."""


@pytest.fixture
def killed_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Raise in the middle of a step, as a kill would."""
    from bert_models.pretraining.module import Pretraining

    original = Pretraining.training_step

    def step(self: Any, batch: Any, index: int) -> Any:
        if self.global_step == request.param:
            raise KilledError(metrics(Path(self.loggers[0].save_dir).parent))
        return original(self, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(Pretraining, "training_step", step)
        yield patch


Whole = Callable[[PretrainSettings], tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def whole_run(corpus: TextFiles, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """`whole_run(settings)`: the folder and the report of a run that nothing interrupts, made once."""

    @cache
    def make(chosen: PretrainSettings) -> tuple[Path, dict[str, Any]]:
        folder = tmp_path_factory.mktemp("whole") / "out"
        return folder, run(chosen.objective, corpus, tokenizer, folder, settings=chosen)

    return make


KILLS = [
    pytest.param(step, objective, accumulate, marks=[] if quick else [pytest.mark.slow])
    for objective, accumulate in (("mlm+nsp", 1), ("mlm+nsp", 3), ("rtd", 1))
    for step in (9, 17, 23)
    for quick in [(objective, accumulate) == ("mlm+nsp", 1) or (objective, step) == ("rtd", 17)]
]


@pytest.mark.parametrize(("killed_at", "objective", "accumulate"), KILLS, indirect=["killed_at"])
def test_resumed_run_matches_an_uninterrupted_run(
    objective: str,
    accumulate: int,
    killed_at: pytest.MonkeyPatch,
    corpus: TextFiles,
    tokenizer: Path,
    whole_run: Whole,
    tmp_path: Path,
) -> None:
    chosen = settings(objective, gradient_accumulation_steps=accumulate, batch_size=12 // accumulate)
    with pytest.raises(KilledError) as kill:
        run(objective, corpus, tokenizer, tmp_path / "parts", settings=chosen)
    (before,) = kill.value.args
    assert "dev_mlm_loss" in before[-1]
    killed_at.undo()
    with pytest.raises(TrainingError, match="go on with --resume or start over with --force"):
        run(objective, corpus, tokenizer, tmp_path / "parts", settings=chosen)
    parts = run(objective, corpus, tokenizer, tmp_path / "parts", resume=True, settings=chosen)
    folder, whole = whole_run(chosen)
    assert parts["measured"] == whole["measured"]
    assert [entry["step"] for entry in whole["measured"]] == [8, 16, 24]
    assert metrics(tmp_path / "parts") == metrics(folder)
    assert metrics(folder)[: len(before)] == before
    found, expected = (read_weights(checkpoint) for checkpoint in (tmp_path / "parts", folder))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("killed_at", [9], indirect=True)
def test_resume_with_another_corpus_or_seed_is_rejected(
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


def test_base_checkpoint_is_trained_further(corpus: TextFiles, tokenizer: Path, tmp_path: Path) -> None:
    run("mlm", corpus, tokenizer, tmp_path / "first", settings=settings("mlm", steps=64, eval_every=64))
    source = InitialModel(base=tmp_path / "first")
    chosen = settings("mlm", steps=8, lr=1e-3, seed=0)
    report = pretrain(source, corpus, tmp_path / "second", chosen, cache=tmp_path / "cache")
    before = json.loads((tmp_path / "first" / "training.json").read_text())["measured"][-1]["mlm_loss"]
    assert report["measured"][-1]["mlm_loss"] < before + 0.1
    assert (report["start"], report["base_revision"]) == ({"base": str(tmp_path / "first")}, None)
    assert open_checkpoint(tmp_path / "second").max_tokens == open_checkpoint(tmp_path / "first").max_tokens
    shorter = settings("mlm", steps=2, eval_every=2, max_tokens=8)
    pretrain(source, corpus, tmp_path / "third", shorter, cache=tmp_path / "cache")
    assert open_checkpoint(tmp_path / "third").max_tokens == open_checkpoint(tmp_path / "first").max_tokens


@pytest.mark.parametrize(("family", "objective"), [("bert", "mlm+nsp"), ("albert", "mlm+sop")])
def test_sentence_pair_head_is_loaded_from_the_base(
    family: str, objective: str, corpus: TextFiles, tokenizer: Path, tmp_path: Path
) -> None:
    source = InitialModel(family=family, size="toy", tokenizer=tokenizer)
    pretrain(source, corpus, tmp_path / "first", settings(objective, steps=4), cache=tmp_path / "cache")
    loaded = InitialModel(base=tmp_path / "first").load(settings(objective))
    assert isinstance(loaded.model, MaskedLanguageModel)
    assert loaded.model.sentence is not None
    saved = read_weights(tmp_path / "first").values()
    for name, parameter in loaded.model.sentence.named_parameters():
        assert any(torch.equal(parameter, weight) for weight in saved), name
    without = InitialModel(base=tmp_path / "first").load(settings("mlm")).model
    assert isinstance(without, MaskedLanguageModel)
    assert without.sentence is None


@pytest.mark.parametrize(
    ("family", "objective", "message"),
    [
        ("albert", "rtd", "albert has no head for replaced-token-detection, which rtd needs; its objectives are "),
        ("electra", "mlm+nsp", "electra has no head for next-sentence-prediction"),
        ("gpt", "mlm", "expected a family of bert, "),
    ],
)  # fmt: skip
def test_unsupported_objectives_are_rejected(
    family: str, objective: str, message: str, corpus: TextFiles, tokenizer: Path, tmp_path: Path
) -> None:
    source = InitialModel(family=family, size="toy", tokenizer=tokenizer)
    with pytest.raises(TrainingError, match=message):
        pretrain(source, corpus, tmp_path / "out", settings(objective), cache=tmp_path / "cache")
    assert not (tmp_path / "out").exists()


def test_all_invalid_settings_are_reported_at_once() -> None:
    with pytest.raises(TrainingError) as error:
        PretrainSettings(steps=0, lr=-1, dev_fraction=1, eval_every=0, precision="fp8")
    for name in ("steps", "lr", "dev_fraction", "eval_every", "precision"):
        assert name in str(error.value)
