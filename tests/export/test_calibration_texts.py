"""Calibration inputs: those of files, and the built-in texts."""

import json
from pathlib import Path

import pytest

from bert_export.calibration_texts import built_in_calibration, file_calibration, reference_texts
from bert_export.errors import ExportError
from bert_models import open_checkpoint
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.errors import DataError
from bert_runtime.tasks import FillMask, QuestionAnswering, Reranking, SentenceEmbedding, TextClassification, TextInput
from bert_runtime.tokenization import TextTokenizer

LABELS = TextClassification(labels=("a", "b"))


@pytest.fixture(scope="module")
def tokenizer(classifier_checkpoint: Path) -> TextTokenizer:
    return open_checkpoint(classifier_checkpoint).text_tokenizer(32)


def lines(folder: Path, texts: list[str]) -> Path:
    path = folder / "texts.txt"
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_inputs_are_evenly_spread_over_a_file(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = lines(tmp_path, [f"card {number}" for number in range(900)])
    found = file_calibration(path, None, LABELS, tokenizer)
    assert [item.text for item in found.inputs] == [f"card {number}" for number in range(0, 900, 3)]
    assert (found.source, found.sha256, found.headroom) == ("texts.txt", sha256_file(path), 1.15)


def test_few_texts_get_more_headroom(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    few = file_calibration(lines(tmp_path, ["my card", "my money"]), None, LABELS, tokenizer)
    assert few.headroom == built_in_calibration(LABELS, tokenizer).headroom == 1.2


def test_built_in_texts_are_added_to_few_with_a_warning(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    texts = [f"card {number}" for number in range(30)]
    few = file_calibration(lines(tmp_path, texts[:5]), None, LABELS, tokenizer)
    built_in = built_in_calibration(LABELS, tokenizer).inputs
    assert few.all_inputs == [*(TextInput(text) for text in texts[:5]), *built_in]
    assert few.warning == (
        f"texts.txt has 5 different inputs to calibrate INT8 on, fewer than 30: {len(built_in)} built-in ones are "
        "added; give a few hundred typical inputs"
    )
    tokens = sum(int(batch.attention_mask.sum()) for batch in few.batches(LABELS, tokenizer))
    assert few.record(tokens)["built_in_inputs"] == len(built_in)
    calibrated, held_out = few.split()
    assert [item.text for item in calibrated.inputs] == ["card 1", "card 2", "card 4"]
    assert sorted(map(str, [*calibrated.all_inputs, *held_out])) == sorted(map(str, few.all_inputs))
    more = file_calibration(lines(tmp_path, texts), None, LABELS, tokenizer)
    assert (more.built_in_inputs, more.warning) == (built_in, None)
    enough = file_calibration(lines(tmp_path, [f"card {number}" for number in range(200)]), None, LABELS, tokenizer)
    assert (enough.built_in_inputs, enough.warning) == ((), None)


def test_repeated_lines_count_once(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    found = file_calibration(lines(tmp_path, ["card", "bank", "lost"] * 100), None, LABELS, tokenizer)
    assert [item.text for item in found.inputs] == ["card", "bank", "lost"]
    assert str(found.warning).startswith("texts.txt has 3 different inputs")


def test_label_columns_are_ignored(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    """The columns are those of the labelled file, and this file need not have all of them."""
    path = tmp_path / "texts.csv"
    path.write_text("sentence,other\nmy card,hello\n", encoding="utf-8")
    columns = {"text": "sentence", "text_pair": "other", "label": "category"}
    assert file_calibration(path, columns, LABELS, tokenizer).inputs == [TextInput("my card", "hello")]


def test_columns_of_reranking_are_read(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    row = {"q": "my card", "docs": ["hello", "bye"], "grades": [1, 0]}
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    columns = {"query": "q", "documents": "docs", "scores": "grades"}
    found = file_calibration(path, columns, Reranking(), tokenizer).inputs
    assert found == [TextInput("my card", "hello"), TextInput("my card", "bye")]


def test_texts_of_a_pair_are_embedded_separately(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("text,text_pair,score\nmy card,hello,0.5\n", encoding="utf-8")
    found = file_calibration(path, None, SentenceEmbedding(dimensions=32), tokenizer).inputs
    assert found == [TextInput("my card"), TextInput("hello")]


def test_plain_texts_become_inputs_of_the_task(classifier_checkpoint: Path, tmp_path: Path) -> None:
    texts = ["where is my card and when can I get it", "the bank is open"]
    source = open_checkpoint(classifier_checkpoint)
    mask = FillMask(mask_token="[MASK]", mask_token_id=4)
    path = lines(tmp_path, [*texts, "my [MASK] is lost"])
    filled = file_calibration(path, None, mask, source.text_tokenizer(32)).inputs
    assert filled[0] == TextInput("my [MASK] is lost")
    assert [item.text.count("[MASK]") for item in filled] == [1, 1, 1]
    questions = QuestionAnswering()
    tokenizer = source.text_tokenizer(32, questions.windows)
    asked = file_calibration(lines(tmp_path, texts), None, questions, tokenizer).inputs
    assert [item.text for item in asked] == ["where is my card and when can I", "the bank is open"]
    assert all(item.text_pair for item in asked)


def test_questions_of_a_file_are_used_as_they_are(classifier_checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"question": "where is it?", "context": "it is here"}) + "\n", encoding="utf-8")
    questions = QuestionAnswering()
    tokenizer = open_checkpoint(classifier_checkpoint).text_tokenizer(32, questions.windows)
    assert file_calibration(path, None, questions, tokenizer).inputs == [TextInput("where is it?", "it is here")]


def test_windows_of_long_texts_are_limited_in_number(classifier_checkpoint: Path, tmp_path: Path) -> None:
    questions = QuestionAnswering()
    tokenizer = open_checkpoint(classifier_checkpoint).text_tokenizer(64, questions.windows)
    path = lines(tmp_path, [" ".join([f"card {i}"] * 1000) for i in range(10)])
    batches = file_calibration(path, None, questions, tokenizer).batches(questions, tokenizer)
    tokens = sum(int(batch.attention_mask.sum()) for batch in batches)
    assert abs(tokens - 32768) < 1500  # windows are chosen by their number, and differ in length
    assert max(batch.input_ids.size for batch in batches) <= 1024


def test_inputs_for_drift_are_held_out(tokenizer: TextTokenizer) -> None:
    texts = built_in_calibration(LABELS, tokenizer)
    assert len(texts.inputs) == len(reference_texts())
    calibrated, held_out = texts.split()
    assert len(calibrated.inputs) == 2 * len(held_out) == 160
    assert not set(calibrated.inputs) & set(held_out)


def test_file_without_valid_inputs_is_an_error(classifier_checkpoint: Path, tmp_path: Path) -> None:
    questions = QuestionAnswering()
    tokenizer = open_checkpoint(classifier_checkpoint).text_tokenizer(8, questions.windows)
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"question": "where is it? " * 9, "context": "here"}) + "\n", encoding="utf-8")
    with pytest.raises(
        ExportError, match=r"expected inputs for question-answering, found 1 that the model cannot read"
    ):
        file_calibration(path, None, questions, tokenizer)
    with pytest.raises(DataError, match=r"absent\.txt"):
        file_calibration(tmp_path / "absent.txt", None, questions, tokenizer)
