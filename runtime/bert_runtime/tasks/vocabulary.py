"""The interface of vocabularies, with which tasks turn tokens into text."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Vocabulary"]


class Vocabulary(Protocol):
    """The part of a tokenizer that tasks use: conversion between tokens and text."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""

    def id_to_token(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it."""

    def token_ids(self, word: str) -> list[int]:
        """Tokenize a word on its own, without special tokens; a word of the vocabulary gives one id."""
