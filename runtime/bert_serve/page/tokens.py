"""The tokens that a model reads, as the page shows them."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Encoding

from bert_runtime import Model
from bert_runtime.tasks import FillMask, Outputs
from bert_runtime.tokenization import UNKNOWN_TOKENS

__all__ = ["display_tokens", "spelling"]


def display_tokens(outputs: Outputs, model: Model) -> dict[str, Any]:
    """Return an input's windows of tokens, and whether its end was cut off."""
    mask_id = model.task.mask_token_id if isinstance(model.task, FillMask) else None
    windowed = model.tokenizer.windows is not None
    return {
        "windows": [
            [_display(encoding, index, outputs, mask_id) for index in range(len(encoding))]
            for encoding in _encodings(outputs, model)
        ],
        "truncated": not windowed and outputs.truncated,
        "max_tokens": model.tokenizer.max_tokens,
    }


def _encodings(outputs: Outputs, model: Model) -> Sequence[Encoding]:
    """Return the tokens that were read; of what holds ids alone, those of the (truncated) input."""
    if isinstance(outputs.encodings[0], Encoding):
        return outputs.encodings
    return model.tokenizer.encode([outputs.input])[0]


def _display(encoding: Encoding, index: int, outputs: Outputs, mask_id: int | None) -> dict[str, Any]:
    """Return a token: how it reads, its id, and `special`, `mask`, `unknown` or `word` as its kind."""
    token, token_id, sequence = encoding.tokens[index], encoding.ids[index], encoding.sequence_ids[index]
    if sequence is None:
        kind = "special"
    elif token_id == mask_id:
        kind = "mask"
    else:
        kind = "unknown" if token in UNKNOWN_TOKENS else "word"
    return {"token": spelling(encoding, index, outputs), "id": token_id, "kind": kind, "text": sequence}


def spelling(encoding: Encoding, index: int, outputs: Outputs) -> str:
    """Return a token as its vocabulary has it, but bytes as the characters that they stand for.

    A byte-level vocabulary spells `né` as `nÃ©`, and a part of a character decodes to U+FFFD: of this, the page shows
    the whole character.
    """
    token = encoding.tokens[index]
    decoded = outputs.vocabulary.decode([encoding.ids[index]])
    if encoding.sequence_ids[index] is None or token.removeprefix("Ġ").isascii() or decoded == token:
        return token
    if "\N{REPLACEMENT CHARACTER}" in decoded:
        text = outputs.input[encoding.sequence_ids[index] or 0] or ""
        return text[slice(*encoding.offsets[index])] or token
    return f"Ġ{decoded[1:]}" if token.startswith("Ġ") and decoded[:1] == " " else decoded if decoded.strip() else token
