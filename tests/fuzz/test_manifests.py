"""Damaged manifests."""

import json
from pathlib import Path
from typing import Any

from hypothesis import example, given

from bert_runtime import Manifest

from .mutations import mutated_bytes, mutated_json, raises_only_typed_errors

TEXT = (Path(__file__).parents[1] / "fixtures/bundle.v1.json").read_text(encoding="utf-8")


@given(mutated_json(json.loads(TEXT)))
def test_values(value: Any) -> None:
    raises_only_typed_errors(lambda: Manifest.from_json(json.dumps(value)))


@given(mutated_bytes(TEXT.encode()))
@example(b"[" * 100_000)
@example(b'{"format_version": ' + b"9" * 5000 + b"}")
def test_text(contents: bytes) -> None:
    raises_only_typed_errors(lambda: Manifest.from_json(contents.decode("utf-8", "replace")))
