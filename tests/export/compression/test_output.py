"""The bundle of a search, as it is written to the output."""

import shutil
from pathlib import Path

import pytest

from bert_export.compression.output import write_bundle
from bert_models import open_checkpoint
from bert_runtime import BertError, Manifest, verify


def test_the_card_names_the_output(classifier_bundle: Path, classifier_checkpoint: Path, tmp_path: Path) -> None:
    """Not the folder of the search, and with the licence of the uncompressed checkpoint."""
    searched = tmp_path / "small.search" / "bundles" / "3-layers-rung-0"
    shutil.copytree(classifier_bundle, searched)
    shutil.copytree(classifier_checkpoint, tmp_path / "intents")
    (tmp_path / "intents" / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    source, record = open_checkpoint(tmp_path / "intents"), {"passed": True}
    write_bundle(searched, tmp_path / "small", record, source, "bert-export export rung-0 small", force=False)
    card = (tmp_path / "small" / "README.md").read_text(encoding="utf-8")
    assert searched.name not in card
    for line in ("license: mit", "# small", 'model = load("small")', "bert-export export rung-0 small"):
        assert f"\n{line}\n" in card
    assert card.count("\n## Compression\n") == 1
    assert Manifest.read(tmp_path / "small").extra["compression"] == record
    assert all(check.passed for check in verify(tmp_path / "small"))


def test_a_bundle_that_appeared_during_the_search_is_kept(
    classifier_bundle: Path, classifier_checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copytree(classifier_bundle, tmp_path / "small")
    source = open_checkpoint(classifier_checkpoint)
    with pytest.raises(BertError, match="a bundle is already there; replace it with --force"):
        write_bundle(classifier_bundle, tmp_path / "small", {}, source, "", force=False)
    assert "compression" not in Manifest.read(tmp_path / "small").extra
