"""What a person sees and does on the page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bert_models import EncoderConfig, TaskModel, save_model
from bert_runtime import load, load_attention
from bert_runtime.tasks import TextClassification

from ...task_bundles import TaskBundles
from ..conftest import StartServer
from .conftest import OpenPage, open_tab, run

if TYPE_CHECKING:
    from playwright.sync_api import Page

MARKUP = "<img src=x onerror=ran=1>"
SCRIPT = "<script>ran=1</script>"
MIXED = "😀😀 hello שלום, مرحبا 👩‍👩‍👧 bank"


@pytest.fixture
def address(start_server: StartServer, classifier_bundle: Path) -> str:
    return start_server({"toy": classifier_bundle})


def test_precisions_stand_side_by_side_with_their_times(
    address: str, open_page: OpenPage, classifier_bundle: Path
) -> None:
    page = open_page(address)
    page.get_by_label("Text", exact=True).fill("where is my card")
    for precision in ("FP32", "INT8"):
        page.get_by_label(precision).check()
    run(page)
    for precision in ("FP32", "INT8"):
        shown = page.get_by_role("article", name=precision)
        expected = load(classifier_bundle, precision=precision.lower())("where is my card")
        best = shown.get_by_role("listitem").first
        assert best.locator(".label").text_content() == expected.label
        assert best.locator(".value").text_content() == f"{100 * expected.score:.1f} %"
        assert " ms for the model (" in (shown.text_content() or "")
    common = page.locator(".comparison").text_content() or ""
    assert "scores differ by at most 0.0" in common


def test_more_labels_are_shown_on_demand(start_server: StartServer, open_page: OpenPage, many_labels: Path) -> None:
    page = open_page(start_server({"toy": many_labels}))
    run(page)
    assert page.get_by_role("listitem").count() == 8
    page.get_by_role("button", name="Show 4 more").click()
    assert page.get_by_role("listitem").count() == 12
    assert page.get_by_role("button", name="more").count() == 0


@pytest.fixture(scope="module")
def many_labels(tmp_path_factory: pytest.TempPathFactory, toy_vocab: Path, toy_config: EncoderConfig) -> Path:
    """A classifier of twelve labels, which are markup."""
    from bert_export import export

    folder = tmp_path_factory.mktemp("labels")
    labels = (MARKUP, SCRIPT, *(f"label {number} {'x' * 60}" for number in range(10)))
    (folder / "checkpoint").mkdir()
    save_model(
        TaskModel(toy_config, TextClassification(labels=labels)), folder / "checkpoint", tokenizer_from=toy_vocab
    )
    export(folder / "checkpoint", folder / "bundle", precisions=["fp32"])
    return folder / "bundle"


def test_texts_labels_and_names_are_never_markup(
    start_server: StartServer, open_page: OpenPage, many_labels: Path
) -> None:
    page = open_page(start_server({f"{MARKUP} {SCRIPT}": many_labels}))
    page.get_by_label("Text", exact=True).fill(f"{MARKUP} {SCRIPT} hello")
    run(page)
    page.get_by_role("button", name="more").click()
    shown = page.locator("#panel-result").text_content() or ""
    assert MARKUP in shown
    assert SCRIPT in shown
    open_tab(page, "Request")
    assert MARKUP in (page.locator("#panel-request").text_content() or "")
    assert page.evaluate("window.ran") is None
    assert page.locator("main img, main script, header img").count() == 0


def test_marks_are_at_characters_not_utf16_units(address: str, open_page: OpenPage) -> None:
    page = open_page(address)
    script = page.locator("script[src]").get_attribute("src") or ""
    spans = [
        {"start": start, "end": start + len(word)}
        for word in ("hello", "שלום", "bank")
        for start in [MIXED.index(word)]
    ]
    marks, text, sides = page.evaluate(
        """async ([script, text, spans]) => {
            const folder = new URL(".", new URL(script, document.baseURI));
            const { markedText } = await import(new URL("results/marked_text.js", folder));
            const { direction } = await import(new URL("unicode.js", folder));
            const mark = (_, part) => Object.assign(document.createElement("mark"), { textContent: part });
            const shown = markedText(text, spans, mark);
            const sides = ["12 😀 שלום x", "مرحبا", "«hello» שלום", "123"].map(direction);
            return [[...shown.querySelectorAll("mark")].map((mark) => mark.textContent), shown.textContent, sides];
        }""",
        [script, MIXED, spans],
    )
    assert marks == ["hello", "שלום", "bank"]
    assert text == MIXED
    assert sides == ["rtl", "rtl", "ltr", "ltr"]


def test_a_text_of_many_scripts_comes_back_whole(address: str, open_page: OpenPage) -> None:
    page = open_page(address)
    page.get_by_label("Text", exact=True).fill(f"שלום {MIXED}")
    run(page)
    open_tab(page, "Tokens")
    chips = page.locator("#panel-tokens .chips")
    assert chips.get_attribute("dir") == "rtl"
    assert chips.locator("li").first.text_content() == "[CLS]2"
    assert chips.locator("li.unknown").count() > 0
    page.get_by_label("Show ids").check()
    assert chips.locator(".id").first.is_visible()


def test_truncation_is_shown(address: str, open_page: OpenPage) -> None:
    page = open_page(address)
    page.get_by_label("Text", exact=True).fill("hello " * 100)
    run(page)
    open_tab(page, "Tokens")
    assert page.locator("#panel-tokens li").count() == 64
    assert page.get_by_text("The text is longer than 64 tokens. The model does not read the rest.").is_visible()


def test_the_keyboard_is_enough(address: str, open_page: OpenPage) -> None:
    page = open_page(address)
    page.locator("#run:enabled").wait_for()
    page.keyboard.press("Tab")
    assert page.locator(":focus").text_content() == "Skip to the answer"
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("where is my card")
    page.keyboard.press("Control+Enter")
    page.get_by_role("article").wait_for()
    page.get_by_role("tab", name="Result").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tabpanel", name="Tokens").is_visible()
    page.keyboard.press("End")
    assert page.get_by_role("tabpanel", name="Request").is_visible()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tabpanel", name="Result").is_visible()


def test_errors_are_shown_as_text(address: str, open_page: OpenPage) -> None:
    page = open_page(address, problem="422")
    page.get_by_label("Text", exact=True).fill("  ")
    run(page)
    assert page.get_by_role("alert").text_content() == "Write something into “Text”."
    page.get_by_label("Text", exact=True).fill("hello " * 10_000)
    run(page)
    found = "expected at most 50,000 characters on this page, found 60,000"
    assert page.get_by_role("alert").text_content() == found
    page.get_by_label("Text", exact=True).fill("hello")
    run(page)
    assert page.get_by_role("alert").count() == 0


def test_a_key_is_asked_for_and_never_shown(
    start_server: StartServer, open_page: OpenPage, classifier_bundle: Path
) -> None:
    page = open_page(start_server({"toy": classifier_bundle}, api_keys=("secret-1",)), problem="401")
    alert = page.get_by_role("alert")
    alert.get_by_text("The server needs an API key.").wait_for()
    page.get_by_label("API key").fill("wrong")
    page.get_by_label("API key").press("Enter")
    alert.get_by_text("The server does not accept this API key.").wait_for()
    page.get_by_label("API key").fill("secret-1")
    page.get_by_label("API key").press("Enter")
    page.locator("#run:enabled").wait_for()
    run(page)
    assert page.get_by_role("article").count() == 1
    open_tab(page, "Request")
    shown = page.locator("#panel-request").text_content() or ""
    assert "secret-1" not in shown
    assert '-H "Authorization: Bearer $API_KEY"' in shown


def test_shown_requests_work_as_they_stand(
    start_server: StartServer, open_page: OpenPage, classifier_bundle: Path, embedding_bundle: Path
) -> None:
    texts = {"classifier": f'it\'s "quoted" \\ $HOME `id` {MIXED}', "embeddings": f"it's {MIXED}\nhello"}
    address = start_server({"classifier": classifier_bundle, "embeddings": embedding_bundle}, api_keys=("secret-1",))
    page = open_page(address, problem="401")
    page.get_by_label("API key").fill("secret-1")
    page.get_by_label("API key").press("Enter")
    page.locator("#run:enabled").wait_for()
    for name, text in texts.items():
        page.get_by_label("Model").select_option(name)
        page.locator("textarea").first.fill(text)
        run(page)
        assert len(check_shown_requests(page, programs=True)) >= 3


def check_shown_requests(page: Page, *, programs: bool) -> list[str]:
    """Run the requests of all formats as they are shown: the commands, and the Python programs; return the formats."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    open_tab(page, "Request")
    environment = {"API_KEY": "secret-1", "PATH": "/usr/bin:/bin", "NO_PROXY": "127.0.0.1", "PYTHONIOENCODING": "utf-8"}
    formats = page.get_by_label("Format").locator("option").all_text_contents()
    for option in formats:
        page.get_by_label("Format").select_option(option)
        command, program = page.locator("#panel-request pre").all_text_contents()
        calls = [["bash", "-c", command.replace("curl ", "curl -sS --fail-with-body ", 1)]]
        calls += [[sys.executable, "-c", program]] if programs else []
        for call in calls:
            done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, (option, done.stdout, done.stderr)
            assert len(done.stdout) > 10
    return formats


def test_attention_is_drawn_by_layer_and_head(
    start_server: StartServer, open_page: OpenPage, attention_bundle: Path
) -> None:
    page = open_page(start_server({"toy": attention_bundle}))
    page.get_by_label("Text", exact=True).fill("where is my card")
    run(page)
    open_tab(page, "Attention")
    expected = load_attention(attention_bundle)("where is my card")
    layers, heads, size, _ = expected.probabilities.shape
    page.get_by_role("button", name="Layer 1, head 2").click()
    assert page.get_by_role("button", name="Layer", pressed=True).count() == 1
    assert page.locator(".overview button").count() == layers * heads
    large = page.locator(".map canvas")
    large.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    weight = expected.probabilities[1, 2, 1, 3]
    reading = page.locator(".reading").text_content()
    assert reading == f"where (2) attends to my (4): {100 * weight:.1f} %"
    box = large.bounding_box()
    assert box is not None
    cell = json.loads(large.evaluate("canvas => JSON.stringify(canvas.getBoundingClientRect())"))
    large.hover(position={"x": cell["width"] - 4, "y": cell["height"] - 4})
    assert f"[SEP] ({size}) attends to [SEP] ({size})" in (page.locator(".reading").text_content() or "")
    page.get_by_label("Layer", exact=True).select_option("1")
    page.get_by_label("Head", exact=True).select_option("1")
    assert page.locator(".overview button[aria-pressed=true]").get_attribute("aria-label") == "Layer 1, head 1"
    colors = large.evaluate(
        "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size"
    )
    assert colors > 20, "weights differ in color"
    assert np.ptp(expected.probabilities) > 0.1


def test_a_bundle_without_attention_explains_how_to_get_it(address: str, open_page: OpenPage) -> None:
    page = open_page(address)
    page.locator("#run:enabled").wait_for()
    open_tab(page, "Attention")
    assert page.get_by_text("bert-export export CHECKPOINT BUNDLE --attention").is_visible()


@pytest.mark.slow
def test_every_task_shows_its_result(start_server: StartServer, open_page: OpenPage, task_bundles: TaskBundles) -> None:
    shown = {
        "token-classification": ".marked",
        "question-answering": "mark.answer",
        "fill-mask": "mark.answer",
        "replaced-token-detection": "mark.shade",
        "next-sentence-prediction": ".bars",
        "sentence-embedding": "table.heat",
        "feature-extraction": "table.heat",
        "reranker": "dl.numbers",
        "rerank": "dl.numbers",
        "multi-label": ".bars",
    }
    page = open_page(start_server({name: task_bundles[name] for name in shown}))
    for name, selector in shown.items():
        page.get_by_label("Model").select_option(name)
        if name == "rerank":
            page.get_by_label("Document").fill("my card")
        if name == "reranker":
            page.get_by_text("Add a second text").click()
            page.get_by_label("Second text").fill("my card")
        run(page)
        assert page.locator("#panel-result").locator(selector).first.is_visible(), name
        formats = check_shown_requests(page, programs=False)
        assert len(formats) >= 2
        assert ("Cohere and Jina: /v1/rerank" in formats) == (name in ("rerank", "reranker"))
        open_tab(page, "Result")
    page.get_by_label("Model").select_option("question-answering")
    run(page)
    page.get_by_role("listitem").nth(1).get_by_role("button").click()
    label = page.get_by_role("listitem").nth(1).locator(".label").text_content()
    assert page.locator("mark.answer").text_content() == label
    for name in ("token-classification", "replaced-token-detection"):
        page.get_by_label("Model").select_option(name)
        page.get_by_label("Text", exact=True).fill(MIXED)
        run(page)
        page.evaluate("document.querySelectorAll('.tag').forEach((tag) => tag.remove())")
        assert page.locator(".marked").text_content() == MIXED
