"""Tokens as the page spells them, by kind of vocabulary."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bert_runtime.tasks import Outputs, TextInput
from bert_runtime.tokenization import TextTokenizer
from bert_serve.page.tokens import spelling


def byte_level(merges: list[tuple[str, str]]) -> TextTokenizer:
    """Return a tokenizer of bytes as RoBERTa has it, with some pairs merged."""
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    words += ["".join(pair) for pair in merges]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return TextTokenizer(tokenizer, 32, 0)


def shown(tokenizer: TextTokenizer, text: str) -> list[str]:
    (windows,) = tokenizer.encode([TextInput(text)])
    outputs = Outputs(TextInput(text), windows, (), tokenizer)
    return [spelling(windows[0], index, outputs) for index in range(len(windows[0]))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b", ["a", "Ġ", "b"]),
        ("né", ["n", "é"]),
        ("a né", ["a", "Ġ", "n", "é"]),
        ("ש", ["ש"]),
        ("a😀", ["a", "😀", "😀", "😀", "😀"]),
    ],
)
def test_bytes_are_shown_as_their_characters(text: str, expected: list[str]) -> None:
    """An emoji that is four tokens of a byte each is shown four times: as the character that each is a part of."""
    assert shown(byte_level([("Ã", "©"), ("×", "©")]), text) == expected
