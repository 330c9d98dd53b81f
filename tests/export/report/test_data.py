"""What a report measures agrees with the manifest, `evaluate` and the models themselves."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bert_export.report import Report, measure_report
from bert_runtime import BundleError, DataError, InputError, evaluate, load, read_records
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.bundle.schema import to_plain
from bert_runtime.model import Model
from bert_runtime.plan import Plan


def test_metrics_are_those_of_evaluate(classifier_report: Report, classifier_bundle: Path, labelled_file: Path) -> None:
    evaluation = classifier_report.evaluation
    assert evaluation is not None
    assert [item.variant for item in evaluation.variants] == ["fp32", "int8"]
    for item in evaluation.variants:
        model = load(classifier_bundle, precision=item.variant, threads=1)
        found = evaluate(model, read_records(labelled_file))
        assert item.metrics == pytest.approx({name: found[name] for name in item.metrics})
        assert item.confusion is not None
        hits = sum(row[i] for i, row in enumerate(item.confusion.counts))
        assert hits / evaluation.examples == pytest.approx(item.metrics["accuracy"])
        assert item.calibration is not None
        assert item.calibration.frequency == pytest.approx(item.metrics["accuracy"])
    assert evaluation.examples == evaluation.variants[0].calibration.count == 33  # type: ignore[union-attr]


def test_flips_are_the_texts_that_the_variants_label_differently(
    classifier_report: Report, classifier_bundle: Path, labelled_file: Path
) -> None:
    assert classifier_report.evaluation is not None
    fp32, int8 = classifier_report.evaluation.variants
    assert fp32.compared is None
    assert int8.compared is not None
    texts = [json.loads(line)["text"] for line in labelled_file.read_text(encoding="utf-8").splitlines()]
    labels = {
        name: [result.to_dict()["label"] for result in load(classifier_bundle, precision=name, threads=1)(texts)]
        for name in ("fp32", "int8")
    }
    differing = [text for text, a, b in zip(texts, labels["fp32"], labels["int8"], strict=True) if a != b]
    assert len(differing) > 3
    assert {flip.text.before for flip in int8.compared.flips} == set(differing)
    assert int8.compared.changed == len(differing)
    assert int8.compared.units == len(texts)


def test_embeddings_have_numbers_instead_of_decisions(embedding_report: Report) -> None:
    assert embedding_report.evaluation is not None
    fp32, int8 = embedding_report.evaluation.variants
    assert fp32.scatter is not None
    assert len(fp32.scatter.points) == 32
    assert fp32.confusion is None
    assert fp32.calibration is None
    assert int8.compared is not None
    assert int8.compared.mean_abs_difference is not None
    assert 0 < int8.compared.mean_abs_difference < 0.2
    changes = [abs(item.variant - item.reference) for item in int8.compared.differences]
    assert changes == sorted(changes, reverse=True)
    assert len(changes) == 20


def test_latencies_are_of_every_length_up_to_the_maximum(classifier_report: Report) -> None:
    latency = classifier_report.latency
    assert latency.tokens == (8, 16, 32, 64)
    assert latency.medians_ms.keys() == {"fp32", "int8"}
    assert all(len(medians) == 4 and min(medians) > 0 for medians in latency.medians_ms.values())
    assert (latency.threads, latency.rounds) == (1, 1)


def test_variants_have_the_threads_of_the_tuned_one(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, int | None] = {}

    def open_variant(bundle: Path, **options: Any) -> Model:
        threads[options["precision"]] = options["threads"]
        return load(bundle, **{**options, "threads": 1})

    plan = Plan(precision="int8", threads=3, inter_threads=1, max_batch_tokens=1024)
    monkeypatch.setattr("bert_export.report.data.tuned_plan", lambda bundle: plan)
    monkeypatch.setattr("bert_export.report.data.load", open_variant)
    report = measure_report(classifier_bundle, rounds=1)
    assert (report.latency.threads, threads) == (3, {"fp32": 3, "int8": None})  # None: the whole plan


def test_records_are_those_of_the_manifest(classifier_report: Report, classifier_bundle: Path) -> None:
    manifest = Manifest.read(classifier_bundle)
    assert classifier_report.bundle == classifier_bundle.name
    assert (classifier_report.source, classifier_report.versions) == (manifest.source, manifest.versions)
    for record, variant in zip(classifier_report.variants, manifest.variants, strict=True):
        assert (record.title, record.fusions, record.drift, record.parity) == (
            variant.title, variant.fusions, variant.drift, variant.parity,
        )  # fmt: skip
        assert record.size_bytes == sum((classifier_bundle / file).stat().st_size for file in record.files)


def test_a_report_is_json(classifier_report: Report, embedding_report: Report) -> None:
    for report in (classifier_report, embedding_report):
        assert json.loads(json.dumps(to_plain(report), allow_nan=False))["bundle"] == report.bundle


def test_options_change_decoding(tmp_path: Path, classifier_bundle: Path, labelled_file: Path) -> None:
    with pytest.raises(InputError, match="text-classification has the options top_k, found bio"):
        measure_report(classifier_bundle, evaluate=labelled_file, options={"bio": True}, rounds=1)


def test_a_damaged_bundle_has_no_report(classifier_bundle: Path, copy_bundle: Any) -> None:
    bundle = copy_bundle(classifier_bundle)
    with (bundle / "model.int8.onnx.data").open("r+b") as stream:
        stream.truncate(1000)
    with pytest.raises(BundleError, match=r"checks failed \(model\.int8\.onnx\.data: .*export the bundle again"):
        measure_report(bundle)


def test_a_file_of_another_task_fails_before_anything_is_timed(
    classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("timed")

    monkeypatch.setattr("bert_export.report.data.median_latencies_ms", never)
    path = tmp_path / "dev.conll"
    path.write_text("my\tO\ncard\tB-item\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"dev\.conll:1: expected a field 'text', found only 'tokens', 'tags'"):
        measure_report(classifier_bundle, evaluate=path)


def test_fp32_alone_has_nothing_to_compare_with(classifier_bundle: Path, copy_bundle: Any, labelled_file: Path) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["variants"] = manifest["variants"][:1]
        manifest["default_precision"] = "fp32"

    report = measure_report(copy_bundle(classifier_bundle, edit), evaluate=labelled_file, threads=1, rounds=1)
    assert report.evaluation is not None
    assert [item.compared for item in report.evaluation.variants] == [None]
    assert replace(report, evaluation=None).runs_here == "fp32"
