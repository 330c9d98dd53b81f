"""Default special tokens of the families by role (`cls_token`, …); a checkpoint may override them."""

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer

__all__ = [
    "ALBERT_SPECIAL_TOKENS",
    "BERT_SPECIAL_TOKENS",
    "DEBERTA_SPECIAL_TOKENS",
    "MASK_TOKENS",
    "MPNET_SPECIAL_TOKENS",
    "ROBERTA_SPECIAL_TOKENS",
    "find_special_token",
    "special_token",
]


MASK_TOKENS = ("[MASK]", "<mask>")
"""Mask tokens of the supported vocabularies."""


def special_token(content: str, *, lstrip: bool = False) -> AddedToken:
    """Return a special token, matched in any text before normalization; `lstrip` also consumes the spaces before it."""
    return AddedToken(content, lstrip=lstrip, special=True, normalized=False)


BERT_SPECIAL_TOKENS = {
    "unk_token": special_token("[UNK]"),
    "sep_token": special_token("[SEP]"),
    "pad_token": special_token("[PAD]"),
    "cls_token": special_token("[CLS]"),
    "mask_token": special_token("[MASK]"),
}

DEBERTA_SPECIAL_TOKENS = BERT_SPECIAL_TOKENS

# Below, a mask consumes the space before it (lstrip), as in every published tokenizer.json and in transformers 4.
# transformers 5 omits lstrip when it builds RoBERTa's, XLM-R's or ALBERT's tokenizer from vocabulary files.

ALBERT_SPECIAL_TOKENS = {
    **BERT_SPECIAL_TOKENS,
    "unk_token": special_token("<unk>"),
    "pad_token": special_token("<pad>"),
    "mask_token": special_token("[MASK]", lstrip=True),
}

ROBERTA_SPECIAL_TOKENS = {
    "bos_token": special_token("<s>"),
    "eos_token": special_token("</s>"),
    "unk_token": special_token("<unk>"),
    "sep_token": special_token("</s>"),
    "pad_token": special_token("<pad>"),
    "cls_token": special_token("<s>"),
    "mask_token": special_token("<mask>", lstrip=True),
}

MPNET_SPECIAL_TOKENS = {**ROBERTA_SPECIAL_TOKENS, "unk_token": special_token("[UNK]")}


def find_special_token(tokenizer: Tokenizer, names: Sequence[str]) -> tuple[str, int] | None:
    """Return the first of `names` in the vocabulary with its id, `None` if it has none.

    Names that the tokenizer declares as special come first: MPNet's vocabulary has BERT's special tokens as well.
    """
    declared = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    for name in sorted(names, key=lambda name: name not in declared):
        if (found := tokenizer.token_to_id(name)) is not None:
            return name, int(found)
    return None
