"""fill-mask: predictions compared with the transformers pipeline, metrics with torch's cross entropy."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from tokenizers import AddedToken

from bert_runtime import InputError, Model
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import FillMask, TextInput

from ..task_models import NASTY, exported, random_model, reference, stsb, wnut

TEXTS = (
    "[MASK]",
    "Paris is the [MASK] of France.",
    "the [MASK] [MASK] is late",
    "[MASK], my book [MASK] (old) - and [MASK]!",
    "un[MASK]able [MASK][MASK]",
    "Zoë [MASK] 東京 😀 e\u0301te\u0301",
)

TOO_LONG = "late " * 300


_BEST: dict[Any, Any] = {}
"""The pipelines' twenty best fillings."""


class Pair(NamedTuple):
    """The transformers pipeline, its model, and a bundle of the same checkpoint."""

    pipeline: Any
    theirs: Any
    model: Model
    mask: str

    def masked(self, text: str) -> str:
        return text.replace("[MASK]", self.mask)

    def fillings(self, text: str, top_k: int, targets: Sequence[str] | None = None) -> Any:
        """Return the pipeline's best fillings; it runs once for all numbers of them."""
        key = (self.mask, len(self.pipeline.tokenizer), text, None if targets is None else tuple(targets))
        if key not in _BEST:
            options = {} if targets is None else {"targets": list(targets)}
            _BEST[key] = self.pipeline(text, top_k=20, **options)
        found = _BEST[key]
        return found[:top_k] if isinstance(found[0], dict) else [mask[:top_k] for mask in found]


def tokenizer_of(name: str, vocab: Path) -> Any:
    if name != "roberta-base":
        return transformers.BertTokenizer(str(vocab / "vocab.txt"))
    files = str(vocab / "roberta-base" / "vocab.json"), str(vocab / "gpt2" / "merges.txt")
    return transformers.RobertaTokenizer(*files, mask_token=AddedToken("<mask>", lstrip=True, special=True))


REAL = ["bert-base-uncased", "roberta-base"]


@pytest.fixture(scope="module", params=["toy", *(pytest.param(name, marks=pytest.mark.shared_data) for name in REAL)])
def pair(request: pytest.FixtureRequest, toy_vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    vocab = toy_vocab
    if request.param != "toy":
        shared: Path = request.getfixturevalue("shared_data")
        vocab = shared / "vocab" if request.param == "roberta-base" else shared / "vocab" / request.param
    tokenizer = tokenizer_of(request.param, vocab)
    family = "Roberta" if request.param == "roberta-base" else "Bert"
    # Wide enough that even the toy vocabulary's embedding is more than torch's exporter would transpose by itself.
    sizes: dict[str, Any] = {"hidden_size": 64}
    if family == "Roberta":  # smaller weights: logits of 37 differ by more than 1e-4 with ONNX Runtime 1.24
        sizes |= {"type_vocab_size": 1, "initializer_range": 0.1}
    theirs = reference(f"{family}ForMaskedLM", tokenizer, **sizes)
    model = exported(theirs, tokenizer, tmp_path_factory.mktemp("filler"))
    pipeline = transformers.pipeline("fill-mask", model=theirs, tokenizer=tokenizer)
    return Pair(pipeline, theirs, model, tokenizer.mask_token)


def same(found: Any, expected: Any) -> None:
    """Compare the fillings of one text with one mask or several."""
    found, expected = ([value] if isinstance(value[0], dict) else value for value in (found, expected))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert [filling["token"] for filling in ours] == [filling["token"] for filling in theirs]
        assert [filling["score"] for filling in ours] == pytest.approx(
            [filling["score"] for filling in theirs], abs=1e-4
        )
        assert [filling["token_str"] for filling in ours] == [filling["token_str"] for filling in theirs]
        assert [filling["sequence"] for filling in ours] == [filling["sequence"] for filling in theirs]


@pytest.mark.parametrize("top_k", [1, 5, 20])
def test_fillings_equal_transformers(pair: Pair, top_k: int) -> None:
    unusual = [f"{text} [MASK] end" for text in NASTY if "[MASK]" not in text]
    texts = list(map(pair.masked, [*TEXTS, *unusual]))
    for text, found in zip(texts, pair.model.with_options(top_k=top_k)(texts), strict=True):
        same(found.to_dict(), pair.fillings(text, top_k))


def masked_words(texts: Sequence[str], mask: str) -> list[str]:
    """Mask one or two words of each text."""
    masked = []
    for number, text in enumerate(texts):
        words = text.split()
        for index in {number % len(words), 0 if number % 3 == 0 else number % len(words)}:
            words[index] = mask
        masked.append(" ".join(words))
    return masked


@pytest.mark.shared_data
@pytest.mark.parametrize("part", ["wnut", "stsb"])
def test_fillings_of_real_texts_equal_transformers(pair: Pair, part: str, shared_data: Path) -> None:
    texts = masked_words(wnut(shared_data, 60) if part == "wnut" else stsb(shared_data, 60), pair.mask)
    for ours, theirs in zip(pair.model(texts), pair.pipeline(texts), strict=True):
        same(ours.to_dict(), theirs)


def in_vocabulary(pair: Pair, word: str) -> str:
    """Return the vocabulary's spelling of a word inside a text, which transformers expects."""
    return f"Ġ{word}" if pair.mask == "<mask>" else word


@pytest.mark.parametrize("candidates", [("bank",), ("late", "rain", "bank"), ("bank", "rain", "bank"), ["old", "late"]])
@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_candidates_equal_targets_of_transformers(pair: Pair, candidates: Any, top_k: int) -> None:
    for text in map(pair.masked, TEXTS):
        expected = pair.fillings(text, top_k, [in_vocabulary(pair, word) for word in candidates])
        same(pair.model.with_options(candidates=candidates, top_k=top_k)(text).to_dict(), expected)


def test_string_candidate_is_one_word_or_refused(pair: Pair) -> None:
    """transformers treats a string as one target; its letters must not become candidates."""
    text = pair.masked("the [MASK] is late")
    try:
        model = pair.model.with_options(candidates="bank")
    except InputError:
        return
    same(model(text).to_dict(), pair.pipeline(text, targets=in_vocabulary(pair, "bank")))


def test_candidate_is_tokenized_as_inside_a_text(pair: Pair) -> None:
    """With a leading space if the vocabulary has one, and in lower case if the vocabulary is uncased."""
    (best,) = pair.model.with_options(candidates=("bank",))(pair.masked("the [MASK] is late")).masks[0]
    assert best.token_str.strip() == "bank"
    assert best.token_str.startswith(" ") == (pair.mask == "<mask>")
    pipeline = pair.pipeline.tokenizer
    assert best.token == pipeline("the bank is", add_special_tokens=False)["input_ids"][1]


def test_subword_candidate_is_found_by_its_spelling(pair: Pair) -> None:
    spelling = "Ġbank" if pair.mask == "<mask>" else "##s"
    (best,) = pair.model.with_options(candidates=(spelling,))(pair.masked("the [MASK] is late")).masks[0]
    assert best.token == pair.pipeline.tokenizer.convert_tokens_to_ids(spelling)


@pytest.mark.parametrize("candidate", ["bank late", "unhelpfullyness", "", " ", "\ud800"])
def test_candidate_of_several_tokens_is_an_error(pair: Pair, candidate: str) -> None:
    with pytest.raises(InputError) as error:
        pair.model.with_options(candidates=("bank", candidate))(pair.masked("the [MASK] is late"))
    assert repr(candidate) in str(error.value)


@pytest.mark.parametrize("candidate", ["☃", "ꙮ", "x" * 120, "😀"])
def test_unknown_candidate_is_an_error(pair: Pair, candidate: str) -> None:
    """The unknown token is not a candidate."""
    with pytest.raises(InputError) as error:
        pair.model.with_options(candidates=("bank", candidate))(pair.masked("the [MASK] is late"))
    assert repr(candidate) in str(error.value)


@pytest.mark.parametrize("text", ["", "no mask", "[mask]", "[ MASK ]", "<MASK>"])
def test_text_without_mask_is_an_error(pair: Pair, text: str) -> None:
    fine = pair.masked("[MASK]")
    for at, inputs in ((0, text), (0, [text, fine]), (2, [fine, fine, text])):
        with pytest.raises(InputError, match=rf"^input {at}: expected at least one {re.escape(pair.mask)}, found none"):
            pair.model(inputs)


def test_truncated_masks_are_not_filled(pair: Pair) -> None:
    assert len(pair.model(pair.masked("[MASK] " + TOO_LONG)).masks) == 1
    assert len(pair.model(pair.masked("[MASK] " + TOO_LONG + "[MASK]")).masks) == 1
    for value in (TOO_LONG + pair.mask, ["fine " + pair.mask, TOO_LONG + pair.mask]):
        with pytest.raises(InputError, match=r"^input [01]: .* within the model's maximum length, found none"):
            pair.model(value)


def test_batch_and_single_agree(pair: Pair) -> None:
    """The logits of a batch's masks are split by the number of masks of each text."""
    texts = [pair.masked(text) for text in (*TEXTS, "[MASK] " + TOO_LONG, "late " * 50 + "[MASK] [MASK]")] * 3
    for found in (pair.model(texts), list(pair.model.stream(texts)), pair.model(texts[::-1])[::-1]):
        for text, result in zip(texts, found, strict=True):
            same(result.to_dict(), pair.model(text).to_dict())
            assert result.logits.shape == (len(result.masks), pair.theirs.config.vocab_size)


def test_scores_sum_to_one_over_the_vocabulary(pair: Pair) -> None:
    text = pair.masked("the [MASK] is late")
    size = pair.theirs.config.vocab_size
    everything = pair.model.with_options(top_k=size)(text).masks[0]
    assert sum(filling.score for filling in everything) == pytest.approx(1, abs=1e-4)
    assert sorted(filling.token for filling in everything) == list(range(size))
    scores = {filling.token: filling.score for filling in everything}
    for filling in pair.model.with_options(candidates=("bank", "rain"))(text).masks[0]:
        assert filling.score == pytest.approx(scores[filling.token], abs=1e-6)


TASK = FillMask(mask_token="[MASK]", mask_token_id=4)


@pytest.mark.parametrize(
    "options",
    [
        {"mask_token": "x"},
        {"aggregation": "first"},
        {"top_k": 0},
        {"top_k": 2.5},
        {"top_k": "3"},
        {"candidates": 5},
        {"candidates": (1,)},
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict[str, Any], toy_vocab: Path) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        random_model(TASK, toy_vocab, 64).with_options(**options)


def test_with_options_does_not_change_the_original_model(pair: Pair) -> None:
    text = pair.masked("the [MASK] is late")
    before, task = pair.model(text).to_dict(), pair.model.task
    other = pair.model.with_options(top_k=1, candidates=("bank",))
    assert other.session is pair.model.session
    assert [filling["token_str"].strip() for filling in other(text).to_dict()] == ["bank"]
    assert pair.model.task is task
    assert pair.model(text).to_dict() == before


def record(**fields: Any) -> Record:
    return Record(fields, Path("data.jsonl"), 3)


LABELLED = [
    ("the [MASK] is late", ["bank"]),
    ("[MASK] [MASK] and the rain", ["old", "book"]),
    ("a good [MASK]", ["film"]),
    ("you [MASK] the [MASK], thanks", ["open", "book"]),
] * 3


def test_perplexity_equals_torch_cross_entropy(pair: Pair) -> None:
    tokenizer = pair.pipeline.tokenizer
    rows, targets = [], []
    for text, words in LABELLED:
        ids = tokenizer(pair.masked(text), return_tensors="pt")
        with torch.no_grad():
            logits = pair.theirs(**ids).logits[0]
        rows.append(logits[ids["input_ids"][0] == tokenizer.mask_token_id])
        targets += [tokenizer.convert_tokens_to_ids(in_vocabulary(pair, word)) for word in words]
    logits, expected = torch.cat(rows).double(), torch.tensor(targets)
    examples = [pair.model.task.example(record(text=pair.masked(text), labels=words)) for text, words in LABELLED]
    found = pair.model.task.score(pair.model.outputs([example.inputs[0] for example in examples]), examples)
    ranks = (logits > logits.gather(1, expected[:, None])).sum(dim=1)
    assert found == {
        "accuracy": float((ranks == 0).double().mean()),
        "top_5_accuracy": float((ranks < 5).double().mean()),
        "perplexity": pytest.approx(float(torch.nn.functional.cross_entropy(logits, expected).exp()), rel=1e-3),
    }


def test_accuracy_and_top_5_accuracy(pair: Pair) -> None:
    """Labels of rank 1 and 2, and of a low rank."""
    text = pair.masked("the [MASK] is late")
    ranked = [
        filling for filling in pair.model.with_options(top_k=2000)(text).masks[0] if word_of(pair, filling.token_str)
    ]
    task = pair.model.task
    outputs = pair.model.outputs([text] * 3)
    order = np.argsort(-outputs[0].arrays[0][0], kind="stable").tolist()
    chosen = [ranked[0], ranked[1], ranked[-1]]
    examples = [task.example(record(text=text, label=filling.token_str.strip())) for filling in chosen]
    found = task.score(outputs, examples)
    ranks = np.array([order.index(filling.token) for filling in chosen])
    assert (found["accuracy"], found["top_5_accuracy"]) == (np.mean(ranks == 0), np.mean(ranks < 5))


def word_of(pair: Pair, text: str) -> bool:
    """Return whether a filling is a whole word."""
    spaced = text.startswith(" ") or pair.mask != "<mask>"
    return spaced and text.strip().isalpha() and text.isascii()


def test_truncated_masks_are_left_out_of_the_score(pair: Pair) -> None:
    task, text = pair.model.task, pair.masked("the [MASK] is " + TOO_LONG + "[MASK]")
    both = task.example(record(text=text, labels=["bank", "rain"]))
    one = task.example(record(text=pair.masked("the [MASK] is " + TOO_LONG), label="bank"))
    found, expected = (task.score(pair.model.outputs(example.inputs), [example]) for example in (both, one))
    assert found == pytest.approx(expected, rel=1e-4)


def test_row_needs_one_word_per_mask() -> None:
    example = TASK.example(record(text="a [MASK] b [MASK]", labels=["x", "y"]))
    assert (example.inputs, example.target) == ((TextInput("a [MASK] b [MASK]"),), ["x", "y"])
    assert TASK.example(record(text="a [MASK]", label="x")).target == ["x"]
    for fields in ({"labels": ["x"]}, {"label": "x"}, {"labels": ["x", "y", "z"]}):
        with pytest.raises(DataError, match=r"^data\.jsonl:3: expected as many \[MASK\] in the text as words, found 2"):
            TASK.example(record(text="a [MASK] b [MASK]", **fields))


def test_unknown_word_as_label_is_an_error(pair: Pair) -> None:
    """Otherwise predicting the unknown token would count as right."""
    task, text = pair.model.task, pair.masked("the [MASK]")
    example = task.example(record(text=text, label="☃"))
    with pytest.raises(InputError, match="☃"):
        task.score(pair.model.outputs([text]), [example])


def test_settings_round_trip() -> None:
    task = replace(TASK, top_k=2, candidates=("a", "b"))
    assert FillMask.from_dict(task.to_dict()) == task


def test_candidates_are_stored_under_the_key_targets() -> None:
    """The key of bundle format 1 and of checkpoints."""
    settings = replace(TASK, candidates=("a", "b")).to_dict()
    assert settings["targets"] == ("a", "b")
    assert "candidates" not in settings
