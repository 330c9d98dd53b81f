"""Tokenizer settings in a checkpoint's JSON files, shared by all kinds of tokenizers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from bert_models.errors import CheckpointError
from bert_models.files import read_optional_json
from bert_models.tokenizer_files.special_tokens import special_token

__all__ = ["TokenizerSettings", "read_model_max_length", "read_truncation_side"]

_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
_EXTRA_KEYS = ("additional_special_tokens", "extra_special_tokens")


def read_model_max_length(folder: Path) -> float | None:
    """Return `model_max_length` of `tokenizer_config.json`; `None` if there is none.

    Raises:
        CheckpointError: it is no positive number.
    """
    path = folder / "tokenizer_config.json"
    limit = read_optional_json(path).get("model_max_length")
    if limit is None or (isinstance(limit, int | float) and not isinstance(limit, bool) and limit >= 1):
        return limit
    raise CheckpointError(f"{path}: expected a positive model_max_length, found {limit!r:.80}")


def read_truncation_side(folder: Path) -> str | None:
    """Return `truncation_side` of `tokenizer_config.json`, `left` or `right`; `None` if there is none.

    Raises:
        CheckpointError: it is something else.
    """
    path = folder / "tokenizer_config.json"
    side = read_optional_json(path).get("truncation_side")
    if side in (None, "left", "right"):
        return side
    raise CheckpointError(f"{path}: expected a truncation_side of left or right, found {side!r}")


@dataclass(frozen=True)
class TokenizerSettings:
    """Contents of `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`, all of them optional."""

    folder: Path

    values: Mapping[str, Any]
    """Options such as `do_lower_case`, and special tokens by role such as `cls_token`."""

    added: Mapping[int, AddedToken]
    """Added tokens by their required id, which may lie beyond the vocabulary file."""

    @classmethod
    def read(cls, folder: Path) -> "TokenizerSettings":
        """Read the files that exist in `folder`; raise `CheckpointError` if one is damaged."""
        config = read_optional_json(folder / "tokenizer_config.json")
        special_map = read_optional_json(folder / "special_tokens_map.json")
        config.setdefault("tokenizer_class", read_optional_json(folder / "config.json").get("tokenizer_class"))
        if "added_tokens_decoder" in config:  # transformers >= 4.34 keeps everything in one file
            values, tokens = {**special_map, **config}, config["added_tokens_decoder"]
        else:
            values, tokens = {**config, **special_map}, {}
            special = {_content(token) for key, token in values.items() if key.endswith("_token")}
            special |= {_content(token) for token in _extra(values, folder)}
            for content, token_id in read_optional_json(folder / "added_tokens.json").items():
                is_special = content in special
                tokens[str(token_id)] = {"content": content, "special": is_special, "normalized": not is_special}
        try:
            added = {int(token_id): _added_token(token, folder) for token_id, token in tokens.items()}
        except (AttributeError, ValueError, TypeError, OverflowError) as error:
            raise CheckpointError(
                f"{folder}: expected added tokens with their ids, found {tokens!r:.80}: {error}"
            ) from None
        return cls(folder, values, added)

    @property
    def class_name(self) -> str | None:
        """The `transformers` tokenizer class that the checkpoint names; raises `CheckpointError` if it is no name."""
        name = self.values.get("tokenizer_class")
        if name is not None and not isinstance(name, str):
            raise CheckpointError(f"{self.folder}: expected tokenizer_class to be a name, found {name!r:.80}")
        return name

    @property
    def added_contents(self) -> set[str]:
        """The added tokens' texts."""
        return {token.content for token in self.added.values()}

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean option, `default` if it is not set; raise `CheckpointError` if it is not a boolean."""
        value = self.optional_flag(name)
        return default if value is None else value

    def optional_flag(self, name: str) -> bool | None:
        """Return a boolean option, or `None` if it is not set; raise `CheckpointError` if it is not a boolean."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise CheckpointError(
                f"{self.folder / 'tokenizer_config.json'}: expected {name} to be true or false, found {value!r:.80}"
            )
        return value

    def special_tokens(self, defaults: Mapping[str, AddedToken]) -> dict[str, AddedToken]:
        """Return the special tokens by role (`cls_token`, …).

        Args:
            defaults: the family's tokens, for roles that the checkpoint does not set.
        """
        by_content = {token.content: token for token in self.added.values()}
        found = {}
        for role, default in defaults.items():
            value = self.values.get(role)
            token = default if value in (None, default.content) else _added_token(value, self.folder)
            found[role] = by_content.get(token.content, token)
        return found

    def add_tokens(self, tokenizer: Tokenizer, special: Mapping[str, AddedToken]) -> None:
        """Add the checkpoint's added tokens and its special tokens to `tokenizer`.

        Args:
            tokenizer: the tokenizer to change.
            special: special tokens by role. Those that the vocabulary lacks are skipped: not every model has a mask.

        Raises:
            CheckpointError: an added token does not get its required id.
        """
        tokenizer.add_tokens([token for _, token in sorted(self.added.items())])
        wrong = [
            f"{token.content!r} (expected id {token_id}, found {tokenizer.token_to_id(token.content)})"
            for token_id, token in self.added.items()
            if tokenizer.token_to_id(token.content) != token_id
        ]
        if wrong:
            raise CheckpointError(f"{self.folder}: the added tokens do not follow the vocabulary: {', '.join(wrong)}")
        tokenizer.add_special_tokens(
            [token for token in special.values() if tokenizer.token_to_id(token.content) is not None]
        )
        tokenizer.add_special_tokens([_added_token(token, self.folder) for token in _extra(self.values, self.folder)])

    def with_ids(self, tokenizer: Tokenizer, *tokens: AddedToken) -> list[tuple[str, int]]:
        """Return tokens with their ids, as post-processors take them; raise `CheckpointError` if one has no id."""
        found = [(token.content, tokenizer.token_to_id(token.content)) for token in tokens]
        absent = [content for content, token_id in found if token_id is None]
        if absent:
            raise CheckpointError(
                f"{self.folder}: expected the special tokens {', '.join(absent)} in the vocabulary, found none; "
                "set those of its vocabulary in special_tokens_map.json"
            )
        return [(content, token_id) for content, token_id in found if token_id is not None]


def _content(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _added_token(token: Any, folder: Path) -> AddedToken:
    """Parse a token from JSON: a string, or an object with `content` and flags."""
    try:
        if isinstance(token, str):
            return special_token(token)
        return AddedToken(token["content"], **{flag: token[flag] for flag in _FLAGS if flag in token})
    except (KeyError, TypeError, UnicodeEncodeError):
        raise CheckpointError(
            f"{folder}: expected a special token (a string, or an object with 'content' and flags), found {token!r:.80}"
        ) from None


def _extra(values: Mapping[str, Any], folder: Path) -> Sequence[Any]:
    """Return the special tokens without a role, which may be a list or an object of names and tokens."""
    key = next((key for key in _EXTRA_KEYS if values.get(key)), None)
    found = [] if key is None else values[key]
    if not isinstance(found, list | dict):
        raise CheckpointError(f"{folder}: expected {key} to be a list of special tokens, found {found!r:.80}")
    return list(found.values()) if isinstance(found, dict) else found
