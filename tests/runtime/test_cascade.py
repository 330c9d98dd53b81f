"""The manifest of a cascade."""

import json
from pathlib import Path

import pytest

from bert_runtime import BundleError
from bert_runtime.bundle.manifest import MANIFEST_NAME
from bert_runtime.cascade import CascadeManifest, is_cascade


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps({"format_version": 2, "cascade": {"threshold": 3}}), True),
        (json.dumps({"format_version": 2, "cascade": None}), True),
        (json.dumps({"format_version": 1, "task": {}}), False),
        (json.dumps({"format_version": 99, "cascade": {}}), False),
        ("{", False),
        ("\udcff", False),
    ],
)
def test_a_damaged_cascade_is_one(text: str, expected: bool, tmp_path: Path) -> None:
    """So that `bert-export cascade --force` replaces what it has written."""
    (tmp_path / MANIFEST_NAME).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert is_cascade(tmp_path) is expected
    with pytest.raises(BundleError):
        CascadeManifest.read(tmp_path)


def test_a_folder_without_a_manifest_is_no_cascade(tmp_path: Path) -> None:
    assert not is_cascade(tmp_path)
