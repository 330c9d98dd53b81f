"""The page: escaped, complete without a network, and readable for every task."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bert_export.report import Report
from bert_export.report.analysis import confusion
from bert_export.report.data import VariantRecord
from bert_export.report.evaluation import Evaluation, compare_judgements, summarize_judgement
from bert_export.report.judgements import Table, judge
from bert_export.report.page import render_page
from bert_runtime.bundle.manifest import Manifest

from .conftest import HOSTILE
from .toy_outputs import CASES, outputs_and_examples


class _Page(HTMLParser):
    """The elements of a page, its text, and the tags that are not closed as they were opened."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.misplaced: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.misplaced.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data

    def section(self, html: str, name: str) -> str:
        """Return the markup of a section."""
        found = re.search(rf'<section id="{name}">(.*?)</section>', html, re.DOTALL)
        assert found is not None
        return found[1]


def case_report(base: Report, name: str, vocab: Path) -> Report:
    """Return a report of a task, with its own random outputs x as FP32, and 1 - x as INT8."""
    task, outputs, examples = outputs_and_examples(name, vocab)
    reference = judge(task, outputs, examples)
    other = judge(
        task, [output._replace(arrays=tuple(1 - array for array in output.arrays)) for output in outputs], examples
    )
    metrics = {key: value for key, value in task.score(outputs, examples).items() if np.isfinite(value)}
    first = summarize_judgement("fp32", metrics, reference, None)
    second = summarize_judgement("int8", metrics, other, compare_judgements(other, reference))
    evaluation = Evaluation(
        file="dev.jsonl", sha256="0" * 64, examples=len(examples), metric=task.metric_for(examples), unit="texts",
        reference="fp32", variants=(first, second),
    )  # fmt: skip
    return replace(base, task=task.to_dict(), evaluation=evaluation)


@pytest.mark.parametrize("name", CASES)
def test_every_task_has_a_page(name: str, classifier_report: Report, toy_vocab: Path) -> None:
    html = render_page(case_report(classifier_report, name, toy_vocab))
    page = _Page(html)
    assert (page.open, page.misplaced) == ([], [])
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids)) == 9
    assert {attributes.get("href") for _, attributes in page.tags} >= {f"#{name}" for name in ids}
    assert "needs a labelled file" not in html
    has_numbers = name in ("regression", "sentence-embedding", "rerank")
    assert ("predicts numbers" in page.section(html, "confusion")) == has_numbers
    has_probabilities = not has_numbers and name not in ("sparse-embedding", "ranked embeddings")
    assert ('class="bar' in page.section(html, "calibration")) == has_probabilities
    assert ('class="dots cloud' in page.section(html, "quality")) == has_numbers
    assert '<ol class="flips">' in page.section(html, "flips")


def test_a_page_needs_nothing_else(classifier_report: Report) -> None:
    page = _Page(render_page(classifier_report))
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "srcset", "xlink:href")}, (
            tag
        )
        assert str(attributes.get("href", "#")).startswith("#")
    policies = [a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert "url(" not in page.text
    assert "@import" not in page.text


def test_texts_and_names_are_escaped(classifier_report: Report, toy_vocab: Path) -> None:
    """Texts, labels, file names and manifest entries come from strangers."""
    report = case_report(classifier_report, "single_label", toy_vocab)
    assert report.evaluation is not None
    int8 = report.evaluation.variants[1]
    assert int8.compared is not None
    flip = int8.compared.flips[0]
    hostile_flip = replace(
        flip, expected=HOSTILE, text=replace(flip.text, before=HOSTILE, focus=HOSTILE),
        variant=replace(flip.variant, predicted=HOSTILE),
    )  # fmt: skip
    table = Table.count([HOSTILE, 'b" onload="x'], [HOSTILE, 'b" onload="x'], [0, 1, 1], [0, 1, 0])
    hostile = replace(
        int8,
        confusion=confusion(table),
        compared=replace(int8.compared, flips=(hostile_flip, *int8.compared.flips[1:])),
    )
    fields = dict.fromkeys(("bundle", "default_reason", "plan", "created", "bert_export"), HOSTILE)
    record = replace(report.variants[1], fusions={HOSTILE: {"found": 1, "expected": 1}}, drift={HOSTILE: 1.0})
    report = replace(
        report,
        **fields,  # type: ignore[arg-type]
        source={"path": HOSTILE, "family": HOSTILE, "sha256": HOSTILE},
        versions={HOSTILE: HOSTILE},
        task={**report.task, "labels": [HOSTILE]},
        variants=(report.variants[0], record),
        evaluation=replace(report.evaluation, file=HOSTILE, variants=(report.evaluation.variants[0], hostile)),
    )
    html = render_page(report)
    page = _Page(html)
    assert "<script" not in html
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count(HOSTILE) > 15


def test_labels_of_a_large_map_are_escaped(classifier_report: Report, toy_vocab: Path) -> None:
    report = case_report(classifier_report, "single_label", toy_vocab)
    assert report.evaluation is not None
    labels = [f"{HOSTILE}{i}" for i in range(77)]
    table = Table.count(labels, labels, [*range(77), 3], [*range(77), 4])
    variants = tuple(replace(item, confusion=confusion(table)) for item in report.evaluation.variants)
    html = render_page(replace(report, evaluation=replace(report.evaluation, variants=variants)))
    page = _Page(html)
    assert "<script" not in html
    assert f"{labels[3]} → {labels[4]}: 1" in page.text
    assert page.section(html, "confusion").count('<rect class="hit"') == 77
    assert '<table class="matrix"' not in html


def test_without_a_labelled_file_the_page_says_how_to_measure(classifier_report: Report) -> None:
    html = render_page(replace(classifier_report, evaluation=None, bundle="my bundle"))
    page = _Page(html)
    for name in ("quality", "flips", "confusion", "calibration"):
        assert "bert-export report &#39;my bundle&#39; --evaluate FILE -o report.html" in page.section(html, name)
    assert (page.open, page.misplaced) == ([], [])


def test_the_page_shows_the_measurements(classifier_report: Report) -> None:
    html = render_page(classifier_report)
    page = _Page(html)
    evaluation = classifier_report.evaluation
    assert evaluation is not None
    for item in evaluation.variants:
        assert f"<td>{item.metrics['accuracy']:.4f}</td>" in page.section(html, "quality")
        assert item.calibration is not None
        assert f"ECE {item.calibration.expected_calibration_error:.3f}" in page.section(html, "calibration")
    for medians in classifier_report.latency.medians_ms.values():
        assert all(f"<td>{value:.3g}</td>" in page.section(html, "latency") for value in medians if value < 100)
    for variant in classifier_report.variants:
        assert f"{variant.size_bytes / 1e6:.1f} MB" in page.section(html, "variants")
    assert str(classifier_report.source["sha256"]) in page.section(html, "bundle")


def test_the_folder_of_the_exporting_machine_is_not_shown(classifier_report: Report, tmp_path: Path) -> None:
    html = render_page(replace(classifier_report, source={"path": "/home/somebody/models/intents", "family": "bert"}))
    assert "intents" in html
    assert "somebody" not in html


def test_a_manifest_of_a_later_release_has_a_page(classifier_report: Report) -> None:
    """Measurements and settings that this release does not know are shown by their names."""
    variant = replace(
        classifier_report.variants[1], parity={"other": 1.0}, drift={"new_measure": 0.5}, metrics={"new_metric": 0.25},
        quantization={"calibration": {"inputs": 3, "source": "x"}}, fusions={"new_fusion": {"found": 2, "expected": 2}},
    )  # fmt: skip
    report = replace(classifier_report, variants=(classifier_report.variants[0], variant), machine={}, exported_on={})
    text = _Page(render_page(report)).text
    for shown in ("new measure", "new metric", "new fusion", "0.5000"):
        assert shown in text


def test_the_inputs_that_quantized_and_judged_are_told_apart(classifier_report: Report) -> None:
    calibration = {"inputs": 193, "built_in_inputs": 160, "source": "calib.csv"}
    judged = {"inputs": 1500, "source": "dev.csv", "calibrated_on_too": True}
    variant = replace(classifier_report.variants[1], quantization={"calibration": calibration, "judged_on": judged})
    text = _Page(render_page(replace(classifier_report, variants=(classifier_report.variants[0], variant)))).text
    assert "33 inputs of calib.csv and 160 built-in ones" in text
    assert "1,500 inputs of dev.csv, which it was calibrated on, too" in text


def test_variants_for_a_gpu_are_listed_with_what_was_recorded(classifier_report: Report) -> None:
    golden = Path(__file__).parents[2] / "fixtures" / "bundle.v1.json"
    variants = Manifest.from_json(golden.read_text(encoding="utf-8")).variants
    html = render_page(replace(classifier_report, variants=tuple(map(VariantRecord.of, variants))))
    page = _Page(html)
    assert "FP16 CUDA packed" in page.section(html, "variants")
    assert "FP16 CUDA: computed on the CPU provider" in page.section(html, "fidelity")
    assert "multi head attention" in page.section(html, "fusions")
    assert "Variants for GPUs are not timed" in page.section(html, "latency")
    assert (page.open, page.misplaced) == ([], [])
