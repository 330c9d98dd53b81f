"""Token vectors: of tokens and words, of short and long texts, and the settings that are refused."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from bert_runtime import DataError, InputError, Model, Record, load
from bert_runtime.tasks import FeatureExtraction, TokenVectors, task_from_dict
from bert_runtime.tasks.feature_extraction import WORD_POOLINGS

from ..task_models import NASTY, RandomRunner, random_model, reference, text_of, wordpiece

TASK = FeatureExtraction(hidden_size=3, num_layers=12, layers=(11, 12))


@pytest.fixture
def model(toy_vocab: Path) -> Model:
    """Random vectors of 6 numbers, in windows of at most 16 tokens."""
    return random_model(TASK, toy_vocab, 16, 6)


def vectors_of(model: Model, value: Any, **options: Any) -> TokenVectors:
    result = model.with_options(**options)(value)
    assert isinstance(result, TokenVectors)
    return result


def test_result_has_all_tokens_with_their_characters(model: Model) -> None:
    text = "My cardx, please"
    result = vectors_of(model, text)
    assert result.tokens == ("[CLS]", "my", "card", "##x", ",", "please", "[SEP]")
    assert [text[start:end] for start, end in result.offsets] == ["", "My", "card", "x", ",", "please", ""]
    assert result.word_ids.tolist() == [-1, 0, 1, 1, 2, 3, -1]
    ids = model.tokenize([text])[0].windows[0].ids
    np.testing.assert_array_equal(result.vectors, RandomRunner(6).values(ids))
    assert result.vectors.dtype == np.float32
    assert result.to_dict() == result.vectors.tolist()
    assert result.summary() == "7 × 6: [CLS], my, card, ##x, ,, please, [SEP]"
    with pytest.raises(FrozenInstanceError):
        result.tokens = ()  # type: ignore[misc]
    without = vectors_of(model, text, special_tokens=False)
    assert without.tokens == result.tokens[1:-1]
    np.testing.assert_array_equal(without.vectors, result.vectors[1:-1])


def test_words_have_one_vector_each(model: Model) -> None:
    text = "My cardx, please"
    tokens = vectors_of(model, text).vectors
    for pooling, card in (("first", tokens[2]), ("mean", tokens[2:4].mean(axis=0))):
        words = vectors_of(model, text, word_pooling=pooling)
        assert words.tokens == ("My", "cardx", ",", "please")
        assert words.offsets.tolist() == [[0, 2], [3, 8], [8, 9], [10, 16]]
        assert words.word_ids.tolist() == [0, 1, 2, 3]
        np.testing.assert_allclose(words.vectors, [tokens[1], card, tokens[4], tokens[5]], rtol=1e-6)


def test_vectors_equal_those_of_the_pipeline(toy_vocab: Path, tmp_path: Path) -> None:
    """A bundle of a middle layer, which is the last one of a model that is cut there."""
    from bert_export import export

    tokenizer = transformers.BertTokenizer(str(toy_vocab / "vocab.txt"))
    theirs = reference("BertModel", tokenizer, num_hidden_layers=3)
    for saved in (theirs, tokenizer):
        saved.save_pretrained(tmp_path / "checkpoint")
    export(tmp_path / "checkpoint", tmp_path / "bundle", task="feature-extraction", layers=2, precisions=["fp32"])
    theirs.encoder.layer = theirs.encoder.layer[:2]
    theirs.config.num_hidden_layers = 2
    pipeline = transformers.pipeline("feature-extraction", model=theirs, tokenizer=tokenizer)
    found, texts = load(tmp_path / "bundle", threads=1), [text for text in NASTY if text.strip()]
    for result, (expected,) in zip(found(texts), pipeline(texts), strict=True):
        np.testing.assert_allclose(result.to_dict(), expected, atol=1e-5)


@pytest.mark.parametrize("length", [0, 1, 14, 15, 40, 200])
def test_long_texts_keep_every_token_and_the_outer_special_tokens(model: Model, length: int, toy_vocab: Path) -> None:
    text = text_of(length)
    whole = wordpiece(toy_vocab).encode(text)
    result = vectors_of(model, text)
    assert list(result.tokens) == whole.tokens
    assert result.offsets.tolist() == list(map(list, whole.offsets))
    assert result.word_ids.tolist() == [-1 if word is None else word for word in whole.word_ids]
    assert len(result.vectors) == len(whole)
    windows = [window.ids for window in model.tokenize([text])[0].windows]
    np.testing.assert_array_equal(result.vectors[0], RandomRunner(6).values(windows[0])[0])
    np.testing.assert_array_equal(result.vectors[-1], RandomRunner(6).values(windows[-1])[-1])
    assert not result.truncated


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("pooling", WORD_POOLINGS)
def test_unusual_texts(model: Model, text: str, pooling: str) -> None:
    result = vectors_of(model, text, word_pooling=pooling)
    assert len(result.vectors) == len(result.tokens) == len(result.offsets) == len(result.word_ids)
    assert result.vectors.shape[1] == 6
    assert np.isfinite(result.vectors).all()


def test_parts_of_a_text_are_pooled_by_their_characters(model: Model) -> None:
    result = vectors_of(model, "My cardx, please")
    whole, inside, nothing = result.pool([(3, 8), (5, 6), (2, 3)])
    np.testing.assert_allclose(whole, result.vectors[2:4].mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(inside, result.vectors[2])
    assert not nothing.any()
    np.testing.assert_array_equal(result.pool([(3, 8)], "first")[0], result.vectors[2])
    assert result.pool([]).shape == (0, 6)
    with pytest.raises(InputError, match="expected a pooling of first, mean, found 'max'"):
        result.pool([(0, 1)], "max")
    with pytest.raises(InputError, match=r"expected spans as pairs of a start and an end, found an array \[3\]"):
        result.pool([0, 1, 2])  # type: ignore[list-item]
    for spans in ("ab", [(0, 1), (2,)]):
        with pytest.raises(InputError, match="expected spans as pairs of a start and an end, found"):
            result.pool(spans)  # type: ignore[arg-type]
    for span in ((3, 1), (-2, 1)):
        with pytest.raises(InputError, match=rf"an end not before it, found \({span[0]}, {span[1]}\)"):
            result.pool([(0, 1), span])


def test_one_text_and_many_give_the_same(model: Model) -> None:
    texts = ["my card", text_of(50), "", "hello"]
    for found, text in zip(model(texts), texts, strict=True):
        np.testing.assert_array_equal(found.vectors, vectors_of(model, text).vectors)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="expected one text, found a pair"):
        model(("a", "b"))


def test_outputs_that_are_held_together_are_bounded(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their bytes, 24 for each token; a text that exceeds the bound by itself is run alone."""
    texts = ["my card", "", text_of(50), "hello", "my card", "bye", "my"]
    expected, held = model(texts), []
    encoded_outputs = Model.encoded_outputs

    def watch(self: Model, encoded: Any) -> Any:
        held.append([item.input.text for item in encoded])
        return encoded_outputs(self, encoded)

    monkeypatch.setattr(Model, "encoded_outputs", watch)
    monkeypatch.setattr("bert_runtime.batching.streaming._MAX_OUTPUT_BYTES", 24 * 7)
    found = list(model.stream([*texts[:5], None, *texts[5:]], on_error="return"))  # type: ignore[list-item]
    assert held == [texts[:2], texts[2:3], texts[3:5], texts[5:]]
    assert not isinstance(found.pop(5), TokenVectors)
    for result, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(result.vectors, other.vectors)  # type: ignore[union-attr,attr-defined]


def test_agreement_is_the_cosine_of_each_token(model: Model) -> None:
    outputs = model.outputs(["my card", "hello"])
    found = TASK.agreement([output._replace(arrays=(2 * output.arrays[0],)) for output in outputs], outputs)
    assert found["mean_cosine"] == pytest.approx(1)
    turned = TASK.agreement([output._replace(arrays=(-output.arrays[0],)) for output in outputs], outputs)
    assert turned["mean_cosine"] == pytest.approx(-1)
    assert turned["min_cosine"] == pytest.approx(-1)
    assert TASK.agreement_floor[0] in turned


def test_there_is_no_metric() -> None:
    with pytest.raises(DataError, match=r"^a.jsonl:3: feature-extraction has no labels .*--calibrate FILE$"):
        TASK.example(Record({"text": "a"}, Path("a.jsonl"), 3))
    with pytest.raises(InputError, match="has no labels"):
        _ = TASK.metric


def test_width_and_depth() -> None:
    assert (TASK.output_width, TASK.depth) == (6, 12)
    mean = FeatureExtraction(hidden_size=3, num_layers=12, layers=(0, 6), layer_combination="mean")
    assert (mean.output_width, mean.depth) == (3, 6)
    assert task_from_dict(mean.to_dict()) == mean


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": ()}, "at least one number"),
        ({"layers": 3}, "at least one number"),
        ({"layers": (1.5,)}, "expected layers to be a whole number of at least 0, found 1.5"),
        ({"layers": (-1,)}, "of at least 0, found -1"),
        ({"layers": (13,)}, r"layers of 0 \(the embeddings\) to 12 \(the last layer\), found 13"),
        ({"layers": (3, 4, 3)}, "expected each layer once, found 3 more than once"),
        ({"layers": (0,)}, "expected a layer above 0: hidden state 0 is the embeddings"),
        ({"layer_combination": "max"}, "expected a layer_combination of concat, mean, sum, found 'max'"),
        ({"word_pooling": "last"}, "expected a word_pooling of none, first, mean, found 'last'"),
        ({"special_tokens": 1}, "expected special_tokens to be true or false, found 1"),
        ({"hidden_size": 0}, "expected hidden_size to be a whole number of at least 1"),
    ],
)
def test_wrong_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FeatureExtraction(**{**vars(TASK), **change})
