"""Read from a tokenizer what pre-training needs: its special tokens, and how they frame a sequence."""

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from tokenizers import Encoding, Tokenizer

from bert_models.errors import TrainingError
from bert_models.tokenizer_files.special_tokens import MASK_TOKENS, find_special_token
from bert_runtime.numerics import IntArray
from bert_runtime.tokenization import UNKNOWN_TOKENS

__all__ = ["PretrainingVocabulary", "SequenceTemplate", "plain_tokenizer"]

_PAD_TOKENS = ("[PAD]", "<pad>")
_PROBES = ("a", "A", "1", ".")
"""Texts of which every vocabulary has at least one."""


@dataclass(frozen=True)
class SequenceTemplate:
    """Special tokens around the texts of a sequence: `prefix A suffix`, or `prefix A middle B suffix` for a pair.

    BERT's is `[CLS] A [SEP] B [SEP]`, RoBERTa's `<s> A </s></s> B </s>`. Documents that share a sequence are separated
    by the last token of `suffix` (RoBERTa's FULL-SENTENCES, arXiv:1907.11692, section 4.2).
    """

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    second_type: int
    """Token type of the second text and the suffix: 1 for BERT, 0 for RoBERTa. All other tokens have type 0."""

    @property
    def separator(self) -> int:
        """The token between two documents."""
        return self.suffix[-1]

    @property
    def num_special(self) -> int:
        """Number of special tokens around one text."""
        return len(self.prefix) + len(self.suffix)

    @property
    def num_special_pair(self) -> int:
        """Number of special tokens around and between two texts."""
        return self.num_special + len(self.middle)


@dataclass(frozen=True)
class PretrainingVocabulary:
    """Token ids by their role. `special_ids` and `regular_ids` are disjoint."""

    mask_id: int
    pad_id: int
    special_ids: IntArray
    """Sorted ids [X] that are never masked and never used as a random replacement."""
    regular_ids: IntArray
    """Sorted ids [V - X] of all other entries; ids may have gaps."""
    template: SequenceTemplate

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> "PretrainingVocabulary":
        """Read the roles from a tokenizer.

        Raises:
            TrainingError: the tokenizer has no mask or padding token, or does not frame pairs as BERT does.
        """
        mask_id, pad_id = _find_id(tokenizer, "mask", MASK_TOKENS), _find_id(tokenizer, "padding", _PAD_TOKENS)
        added = tokenizer.get_added_tokens_decoder()
        special = {number for number, token in added.items() if token.special}
        # Not every tokenizer file declares all of its special tokens as special.
        known = (tokenizer.token_to_id(name) for name in (*MASK_TOKENS, *_PAD_TOKENS, *UNKNOWN_TOKENS))
        template = _read_template(tokenizer)
        framing = (*template.prefix, *template.middle, *template.suffix)
        special |= {number for number in (*known, *framing) if number is not None}
        entries = set(tokenizer.get_vocab(with_added_tokens=True).values())
        return cls(
            mask_id=mask_id,
            pad_id=pad_id,
            special_ids=np.array(sorted(special), dtype=np.int64),
            regular_ids=np.array(sorted(entries - special), dtype=np.int64),
            template=template,
        )

    @property
    def size(self) -> int:
        """The largest id plus one."""
        return int(max(self.special_ids.max(initial=-1), self.regular_ids.max(initial=-1))) + 1


def plain_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy that neither truncates nor pads, and tokenizes the spelling of a special token as text."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    return copy


def _find_id(tokenizer: Tokenizer, role: str, names: tuple[str, ...]) -> int:
    if found := find_special_token(tokenizer, names):
        return found[1]
    raise TrainingError(f"the tokenizer has no {role} token; expected {' or '.join(names)} in its vocabulary")


def _read_template(tokenizer: Tokenizer) -> SequenceTemplate:
    """Return the template that the tokenizer's post-processor applies to a pair."""
    plain = plain_tokenizer(tokenizer)
    text = next((found for probe in _PROBES if len(found := plain.encode(probe, add_special_tokens=False))), None)
    framed: Encoding | None = None if text is None else plain.post_process(text, text)
    special = [] if framed is None else framed.special_tokens_mask
    runs = [(bool(is_special), len(list(run))) for is_special, run in groupby(special)]
    if framed is None or [is_special for is_special, _ in runs] != [True, False, True, False, True]:
        shown = f"no token for any of {', '.join(_PROBES)}" if framed is None else str(framed.tokens)
        raise TrainingError(
            "expected a tokenizer that puts special tokens before, between and after two texts, as BERT's does; "
            f"found {shown}"
        )
    prefix, first, middle, _, suffix = (length for _, length in runs)
    ids, start = framed.ids, prefix + first + middle
    return SequenceTemplate(
        tuple(ids[:prefix]), tuple(ids[prefix + first : start]), tuple(ids[-suffix:]), framed.type_ids[start]
    )
