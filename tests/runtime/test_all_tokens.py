"""All tokens of a text, from tokenizers that truncate on either side or cut into windows."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from bert_runtime import InputError
from bert_runtime.tasks import WindowedText
from bert_runtime.tokenization import TextTokenizer, Token

TEXT = "Where is my card? I lost it, é! 你好 " * 5


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("windows", [None, "text", "text_pair"])
@pytest.mark.parametrize("special_tokens", [False, True])
def test_no_token_is_dropped_or_repeated(
    side: str, windows: WindowedText | None, special_tokens: bool, classifier_bundle: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(classifier_bundle / "tokenizer.json"))
    tokenizer.no_truncation()
    for text in (TEXT, "card", ""):
        expected = tokenizer.encode(text, add_special_tokens=special_tokens)
        tokenizer.enable_truncation(12, direction=side)
        truncating = Tokenizer.from_str(tokenizer.to_str())
        tokenizer.no_truncation()
        tokens = TextTokenizer(truncating, 12, 0, windows).all_tokens(text, special_tokens=special_tokens)
        assert [token.id for token in tokens] == expected.ids
        assert [token.special for token in tokens] == [bool(special) for special in expected.special_tokens_mask]
        places = [None if token.special else (token.start, token.stop) for token in tokens]
        assert places == [
            None if special else place
            for place, special in zip(expected.offsets, expected.special_tokens_mask, strict=True)
        ]


def test_a_token_has_the_characters_that_it_stands_for(classifier_bundle: Path) -> None:
    first, hello, *_ = TextTokenizer.from_file(classifier_bundle / "tokenizer.json", 12, 0).all_tokens("HELLO you")
    assert (first.text, first.special, first.start) == ("[CLS]", True, None)
    assert hello == Token(hello.id, "HELLO", special=False, start=0, stop=5)


def test_a_text_that_no_encoding_can_express_is_an_error(classifier_bundle: Path) -> None:
    with pytest.raises(InputError, match="cannot encode the text"):
        TextTokenizer.from_file(classifier_bundle / "tokenizer.json", 12, 0).all_tokens("\ud800")
