"""What pre-training must know of a tokenizer: its special tokens, and how a sequence is framed with them."""

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from tokenizers import Encoding, Tokenizer

from bert_models.errors import TrainingError
from bert_runtime.numerics import IntArray

__all__ = ["Frame", "Vocabulary", "plain_tokenizer"]


_MASKS = ("[MASK]", "<mask>")
_PADS = ("[PAD]", "<pad>")
_UNKNOWNS = ("[UNK]", "<unk>")
_PROBES = ("a", "A", "1", ".")
"""Texts of which every vocabulary knows one."""


@dataclass(frozen=True)
class Frame:
    """The special tokens around the texts of a sequence: `prefix first suffix`, or `prefix first middle second suffix`.

    Between two documents in one sequence stands the last token of `suffix`, as after RoBERTa's (arXiv 1907.11692).
    """

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    second_type: int
    """Token type of the second text and what follows it: 1 for BERT, 0 for RoBERTa. All else has type 0."""

    @property
    def separator(self) -> int:
        """Between documents."""
        return self.suffix[-1]

    @property
    def num_special(self) -> int:
        """Special tokens around one text."""
        return len(self.prefix) + len(self.suffix)

    @property
    def num_special_of_pair(self) -> int:
        """Special tokens around and between two texts."""
        return self.num_special + len(self.middle)


@dataclass(frozen=True)
class Vocabulary:
    """Token ids by their role. No two arrays share an id."""

    mask: int
    pad: int
    special: IntArray
    """Sorted ids [X] that are never masked and never put in another token's place."""
    ordinary: IntArray
    """Sorted ids [V - X] of all other entries; a vocabulary may have gaps."""
    frame: Frame

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Vocabulary":
        """Reads the roles off a tokenizer; raises `TrainingError` where it lacks one."""
        mask, pad = _role(tokenizer, "mask", _MASKS), _role(tokenizer, "padding", _PADS)
        added = tokenizer.get_added_tokens_decoder()
        special = {number for number, token in added.items() if token.special}
        # Not every tokenizer file says of all of its special tokens that they are.
        named = (tokenizer.token_to_id(name) for name in (*_MASKS, *_PADS, *_UNKNOWNS))
        frame = _frame(tokenizer)
        special |= {number for number in (*named, *frame.prefix, *frame.middle, *frame.suffix) if number is not None}
        entries = set(tokenizer.get_vocab(with_added_tokens=True).values())
        return cls(
            mask=mask,
            pad=pad,
            special=np.array(sorted(special), dtype=np.int64),
            ordinary=np.array(sorted(entries - special), dtype=np.int64),
            frame=frame,
        )

    @property
    def size(self) -> int:
        """One more than the greatest id."""
        return int(max(self.special.max(initial=-1), self.ordinary.max(initial=-1))) + 1


def plain_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that neither truncates nor pads, and reads a special token's spelling in a text as text."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    return copy


def _role(tokenizer: Tokenizer, role: str, names: tuple[str, ...]) -> int:
    for name in names:
        if (number := tokenizer.token_to_id(name)) is not None:
            return int(number)
    raise TrainingError(f"the tokenizer has no {role} token; expected {' or '.join(names)} in its vocabulary")


def _frame(tokenizer: Tokenizer) -> Frame:
    """The frame that the tokenizer's own post-processor puts around a pair."""
    plain = plain_tokenizer(tokenizer)
    text = next((found for probe in _PROBES if len(found := plain.encode(probe, add_special_tokens=False))), None)
    framed: Encoding | None = None if text is None else plain.post_process(text, text)
    special = [] if framed is None else framed.special_tokens_mask
    runs = [(bool(key), len(list(run))) for key, run in groupby(special)]
    if framed is None or [key for key, _ in runs] != [True, False, True, False, True]:
        raise TrainingError(
            "expected a tokenizer that puts special tokens before, between and after two texts, as BERT's does; "
            f"found {framed.tokens if framed is not None else 'one that knows no letter'}"
        )
    prefix, first, middle, _, suffix = (length for _, length in runs)
    ids, start = framed.ids, prefix + first + middle
    return Frame(tuple(ids[:prefix]), tuple(ids[prefix + first : start]), tuple(ids[-suffix:]), framed.type_ids[start])
