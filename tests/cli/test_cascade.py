"""`bert-export cascade`: the gate, the bundle that it writes, and what the other commands do with it."""

import json
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from click.testing import Result

from bert_export import export
from bert_export.cascade import build_cascade
from bert_models import EncoderConfig, TaskModel, save_model
from bert_runtime import Model, load
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.cascade import Cascade, CascadeClassification, CascadeManifest
from bert_runtime.errors import BundleError, InputError, NewerFormatError
from bert_runtime.records import read_records
from bert_runtime.tasks import TextClassification

from ..conftest import LABELS, CopyBundle

Run = Callable[..., Result]
WORDS = (
    "my",
    "card",
    "is",
    "lost",
    "at",
    "the",
    "bank",
    "please",
    "help",
    "good",
    "morning",
    "where",
    "late",
    "see",
    "you",
)


class Toys(NamedTuple):
    """Two bundles, texts, and what both predict."""

    small: Path
    large: Path
    texts: list[str]
    small_labels: list[str]
    large_labels: list[str]
    is_sure: list[bool]
    """Whether the small model is surer of a text than of half of them."""
    is_clear: list[bool]
    """Whether it is much surer or much less sure: a temperature changes the order of texts that are close."""

    def write(self, path: Path, labels: list[str], kept: list[bool] | None = None) -> Path:
        """Write labelled rows, by default all."""
        rows = zip(self.texts, labels, kept or [True] * len(labels), strict=True)
        path.write_text("".join(json.dumps({"text": a, "label": b}) + "\n" for a, b, is_kept in rows if is_kept))
        return path

    def write_dev(self, path: Path) -> Path:
        """Write rows about which the large model is right, and the small one where it is sure and only there."""
        rows = zip(self.small_labels, self.large_labels, self.is_sure, strict=True)
        kept = [(a == b) == is_sure for a, b, is_sure in rows]
        return self.write(path, self.large_labels, [a and b for a, b in zip(kept, self.is_clear, strict=True)])


def labels_of(model: Model, texts: list[str]) -> list[str]:
    return [cast(Any, result).label for result in model(texts)]


@pytest.fixture(scope="module")
def toys(
    tmp_path_factory: pytest.TempPathFactory, classifier_bundle: Path, toy_vocab: Path, toy_config: EncoderConfig
) -> Toys:
    """The toy classifier as the small model, and one with other random weights as the large one."""
    folder = tmp_path_factory.mktemp("cascade")
    torch.manual_seed(11)
    (folder / "checkpoint").mkdir()
    model = TaskModel(toy_config, TextClassification(labels=LABELS)).eval()
    save_model(model, folder / "checkpoint", tokenizer_from=toy_vocab)
    export(folder / "checkpoint", folder / "large", precisions=["fp32"])
    draw = random.Random(0)
    texts = list({" ".join(draw.choices(WORDS, k=draw.randint(2, 9))): None for _ in range(400)})
    small = load(classifier_bundle)
    scores = np.array([cast(Any, result).score for result in small(texts)])
    return Toys(
        classifier_bundle, folder / "large", texts, labels_of(small, texts), labels_of(load(folder / "large"), texts),
        (scores >= np.median(scores)).tolist(),
        ((scores < np.quantile(scores, 0.35)) | (scores > np.quantile(scores, 0.65))).tolist(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def cascade(toys: Toys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cascade of the toys, chosen on the rows of `write_dev`."""
    folder = tmp_path_factory.mktemp("built")
    records = read_records(toys.write_dev(folder / "dev.jsonl"))
    found = build_cascade(toys.small, toys.large, folder / "both", records, max_drop=3)
    assert found.passed, found.reason
    assert " ms instead of " in found.reason
    return folder / "both"


def test_the_small_model_answers_what_it_is_sure_of(cascade: Path, toys: Toys) -> None:
    manifest, model = CascadeManifest.read(cascade), load(cascade)
    assert isinstance(model, Cascade)
    results = cast(list[CascadeClassification], model(toys.texts))
    models = {result.model for result in results}
    assert models == {"small", "large"}
    alone = {"small": labels_of(model.small, toys.texts), "large": labels_of(model.large, toys.texts)}
    for index, result in enumerate(results):
        assert result.label == alone[result.model][index]
        assert result.to_dict()["model"] == result.model
        if result.model == "small":
            assert result.score >= manifest.threshold - 1e-6
    assert 0.1 < manifest.judged_on["small_share"] < 0.9
    assert manifest.judged_on["small"] < manifest.judged_on["found"]
    assert manifest.judged_on["drop_percent"] <= 3
    assert set(manifest.latency_ms) == {"small", "large", "cascade"}


def test_one_many_streamed_and_by_threads_are_the_same(cascade: Path, toys: Toys) -> None:
    model, texts = load(cascade), toys.texts[:60]
    expected = [result.to_dict() for result in model(texts)]
    ways = [[model(text) for text in texts], list(model.stream(iter(texts)))]
    with ThreadPoolExecutor(8) as threads:
        ways.append(list(threads.map(model, texts)))
    for results in ways:
        for result, other in zip(results, expected, strict=True):
            assert result.to_dict() == {**other, "score": pytest.approx(other["score"], abs=1e-5)}
    assert model([]) == []
    with pytest.raises(InputError, match=r"a cascade has no options, .*; found threshold; load its folder"):
        model.with_options(threshold=0.3)
    with pytest.raises(InputError, match="a cascade reads texts"):
        model.run_encodings([])


def test_the_large_model_reads_what_is_left_at_once(cascade: Path, toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(cascade)
    assert isinstance(model, Cascade)
    read: list[int] = []
    compute, tokenize = model.large.encoded_outputs, model.large.tokenize
    monkeypatch.setattr(model.large, "encoded_outputs", lambda items: read.append(len(items)) or compute(items))
    monkeypatch.setattr(model.large, "tokenize", None)  # both have one tokenizer
    results = model(toys.texts)
    assert read == [sum(cast(Any, result).model == "large" for result in results)]
    monkeypatch.setattr(model.large, "tokenize", tokenize)
    monkeypatch.setattr(model, "_same_tokens", False)
    assert [result.to_dict() for result in model(toys.texts)] == [result.to_dict() for result in results]
    assert read[1:] == read[:1]


def test_commands_read_it(cascade: Path, toys: Toys, run: Run, tmp_path: Path) -> None:
    predicted = json.loads(run("predict", cascade, toys.texts[0], "--json").stdout)
    assert set(predicted) == {"label", "score", "model"}
    dev = toys.write_dev(tmp_path / "dev.jsonl")
    report = json.loads(run("evaluate", cascade, dev, "--json").stdout)
    assert (report["small"], report["large"]) == (load(toys.small).variant.precision, "fp32")  # type: ignore[union-attr]
    assert report["accuracy"] > 0.9
    checks = json.loads(run("verify", cascade, "--json").stdout)
    assert all(check["passed"] for check in checks)
    assert {"bundle.json", "small/bundle.json", "large: self-test fp32"} <= {check["name"] for check in checks}
    assert json.loads(run("inspect", cascade, "--json").stdout)["cascade"]["metric"] == "accuracy"
    shown = run("inspect", cascade).stdout
    rows = CascadeManifest.read(cascade).judged_on["rows"]
    assert f"of {rows} rows in 10 folds" in shown
    assert "of small alone" in shown


@pytest.mark.parametrize("command", ["report", "calibrate-scores"])
def test_other_commands_refuse_it_with_the_reason(cascade: Path, command: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text('{"text": "a", "label": "question"}\n')
    more = {"report": ["-o", tmp_path / "r.html"], "calibrate-scores": [tmp_path / "dev.jsonl"]}.get(command, [])
    result = run(command, cascade, *more)
    assert result.exit_code == 1
    assert "cascade" in result.stderr


@pytest.mark.parametrize("name", ["small", "large"])
def test_its_parts_are_not_calibrated(cascade: Path, name: str, toys: Toys, run: Run, tmp_path: Path) -> None:
    """The cascade records the hash of their manifests."""
    result = run("calibrate-scores", cascade / name, toys.write(tmp_path / "rows.jsonl", toys.large_labels))
    assert result.exit_code == 1
    assert f"{cascade / name}: is a part of the cascade {cascade}" in " ".join(result.stderr.split())
    CascadeManifest.read(cascade)


def test_both_models_are_tuned(cascade: Path, toys: Toys, run: Run, tmp_path: Path) -> None:
    both = Path(shutil.copytree(cascade, tmp_path / "both"))
    result = run("tune", both, "--rounds", 1, "--json")
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.stdout)) == {"small", "large"}
    assert all((both / name / "tuning.json").is_file() for name in ("small", "large"))
    assert run("predict", both, toys.texts[0]).exit_code == 0


def test_a_limit_that_cannot_be_reached_writes_nothing(toys: Toys, run: Run, tmp_path: Path) -> None:
    wrong = [small != large for small, large in zip(toys.small_labels, toys.large_labels, strict=True)]
    assert sum(wrong) > 70
    dev = toys.write(tmp_path / "dev.jsonl", toys.large_labels, wrong)
    options = ("--small", toys.small, "--large", toys.large, "--dev", dev, "--max-drop", 0, "--json")
    result = run("cascade", tmp_path / "both", *options)
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert not report["passed"]
    assert report["judged_on"]["drop_percent"] >= 0
    assert report["judged_on"]["rows"] == sum(wrong)
    assert "cannot be reached" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["dev.jsonl"]


def test_many_rows_give_each_label_of_the_small_model_a_scale(toys: Toys, tmp_path: Path) -> None:
    draw = random.Random(1)
    rows = [{"text": " ".join(draw.choices(WORDS, k=8)), "label": LABELS[index % 3]} for index in range(320)]
    for count, method in ((320, "vector"), (280, "temperature")):
        (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, rows[:count])))
        records = read_records(tmp_path / "dev.jsonl")
        found = build_cascade(toys.small, toys.large, tmp_path / "both", records, max_drop=100, force=True)
        assert [found.manifest.calibration[name]["method"] for name in ("small", "large")] == [method, "temperature"]


def test_several_labels(toys: Toys, copy_bundle: CopyBundle, tmp_path: Path) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["task"]["problem_type"] = "multi_label"
        manifest["task"]["thresholds"] = [0.4, 0.5, 0.6]

    large = copy_bundle(toys.large, edit)
    small = copy_bundle(toys.small, lambda manifest: manifest["task"].update(problem_type="multi_label"))
    texts = load(large)(toys.texts)
    rows = [
        json.dumps({"text": text, "labels": [label for label, _ in cast(Any, result).chosen]})
        for text, result in zip(toys.texts, texts, strict=True)
    ]
    (tmp_path / "dev.jsonl").write_text("\n".join(rows))
    found = build_cascade(small, large, tmp_path / "both", read_records(tmp_path / "dev.jsonl"), max_drop=100)
    assert found.passed
    assert found.manifest.metric == "micro_f1"
    assert found.manifest.calibration == {}
    model = load(tmp_path / "both")
    assert isinstance(model, Cascade)
    strict = Cascade(model.small, model.large, replace(found.manifest, threshold=0.6))
    expected = {"small": load(small)(toys.texts[:60]), "large": load(large)(toys.texts[:60])}
    results = [result.to_dict() for result in strict(toys.texts[:60])]
    assert {result["model"] for result in results} == {"small", "large"}
    for index, result in enumerate(results):
        chosen = cast(Any, expected[result["model"]][index]).chosen
        assert [item["label"] for item in result["labels"]] == [label for label, _ in chosen]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"problem_type": "regression"}, "whose probabilities say how sure the model is, found text-classification"),
        ({"labels": ["farewell", "greeting", "question"]}, "of the same labels in the same order"),
    ],
)
def test_bundles_that_do_not_fit_are_refused(
    toys: Toys, copy_bundle: CopyBundle, run: Run, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    small = copy_bundle(toys.small, lambda manifest: manifest["task"].update(settings))
    dev = toys.write(tmp_path / "dev.jsonl", toys.large_labels)
    options = ("--small", small, "--large", toys.large, "--dev", dev, "--max-drop", 1)
    result = run("cascade", tmp_path / "both", *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert not (tmp_path / "both").exists()


def test_outputs_are_not_overwritten(cascade: Path, toys: Toys, run: Run, tmp_path: Path) -> None:
    both = Path(shutil.copytree(cascade, tmp_path / "both"))
    dev = toys.write_dev(tmp_path / "dev.jsonl")
    options = ("--small", toys.small, "--large", toys.large, "--dev", dev, "--max-drop", 3)
    assert "replace it with --force" in run("cascade", both, *options).stderr
    assert "choose another folder for the cascade" in run("cascade", toys.small, *options, "--force").stderr
    assert "is in the bundle" in run("cascade", toys.small / "both", *options).stderr
    assert run("cascade", tmp_path / "other", *options, "--seed", -1).exit_code == 2
    nested = ("--small", both, *options[2:])
    assert f"{both / 'bundle.json'}: expected the bundle of one" in run("cascade", tmp_path / "other", *nested).stderr
    (both / "small" / "notes.txt").touch()
    assert "besides the bundle there is also notes.txt" in run("cascade", both, *options, "--force").stderr
    (both / "small" / "notes.txt").unlink()
    assert run("cascade", both, *options, "--force").exit_code == 0
    (tmp_path / "few.jsonl").write_text('{"text": "a", "label": "question"}\n' * 80)
    few = ("--small", toys.small, "--large", toys.large, "--dev", tmp_path / "few.jsonl", "--max-drop", 1)
    assert f"{tmp_path / 'few.jsonl'}: expected at least 60" in run("cascade", tmp_path / "other", *few).stderr


def test_damage_is_found(cascade: Path, tmp_path: Path) -> None:
    both = Path(shutil.copytree(cascade, tmp_path / "both"))
    values = json.loads((both / "bundle.json").read_text())
    values["format_version"] = 3
    (both / "bundle.json").write_text(json.dumps(values))
    with pytest.raises(NewerFormatError, match="this release reads up to 2"):
        load(both)
    values["format_version"], values["cascade"]["threshold"] = 2, 0.123
    (both / "bundle.json").write_text(json.dumps(values))
    with pytest.raises(BundleError, match="the manifest was changed or damaged"):
        load(both)
    shutil.copy(cascade / "bundle.json", both / "bundle.json")
    shutil.copytree(both / "large", both / "small", dirs_exist_ok=True)
    with pytest.raises(BundleError, match="judged with another bundle"):
        load(both)
    with pytest.raises(BundleError, match="found a cascade of two"):
        Manifest.read(both)
