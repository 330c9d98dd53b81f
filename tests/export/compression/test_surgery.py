"""Surgery by importance, and how a candidate is saved."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bert_export.compression.candidates import Candidate
from bert_export.compression.surgery import Surgeon
from bert_models import load_model, open_checkpoint

from .search_data import read


def test_a_surgeon_keeps_the_important_neurons_of_the_kept_layers(
    classifier_checkpoint: Path, labelled: Path, train_file: Path
) -> None:
    source = open_checkpoint(classifier_checkpoint)
    surgeon = Surgeon(source, source.task(), read(classifier_checkpoint, labelled, train_file), None)
    kept = Candidate(layers=(1,), intermediate_size=24)
    model = surgeon.cut(kept)
    best = surgeon.neurons[1].topk(24).indices.sort().values
    expected = surgeon.model.encoder.layers[1].feed_forward.up.weight[best]  # type: ignore[union-attr]
    assert torch.equal(model.encoder.layers[0].feed_forward.up.weight, expected)  # type: ignore[union-attr]
    assert surgeon.loss(Candidate(layers=(0, 1), intermediate_size=64)) != surgeon.loss(kept)
    assert surgeon.row_s > 0


def test_a_surgeon_narrows_a_checkpoint_to_its_important_neurons(
    classifier_checkpoint: Path, labelled: Path, train_file: Path, tmp_path: Path
) -> None:
    source = open_checkpoint(classifier_checkpoint)
    surgeon = Surgeon(source, source.task(), read(classifier_checkpoint, labelled, train_file), None)
    kept = Candidate(layers=(0, 1), intermediate_size=24)
    surgeon.save(kept, tmp_path / "narrower", trained=classifier_checkpoint)
    narrower, cut = load_model(open_checkpoint(tmp_path / "narrower"), source.task()), surgeon.cut(kept)
    for name, tensor in cut.state_dict().items():
        assert torch.equal(narrower.state_dict()[name], tensor), name


def test_a_candidate_that_prunes_tokens_is_saved_with_its_schedule(
    classifier_checkpoint: Path, labelled: Path, train_file: Path, tmp_path: Path
) -> None:
    source = open_checkpoint(classifier_checkpoint)
    surgeon = Surgeon(source, source.task(), read(classifier_checkpoint, labelled, train_file), None)
    surgeon.save(Candidate(layers=(0, 1), intermediate_size=24, kept_percent=30), tmp_path / "cut")
    assert str(open_checkpoint(tmp_path / "cut").config.token_pruning) == "1:0.3"
    assert surgeon.model.config.token_pruning is None


def test_a_candidate_is_saved_whole_or_not_at_all(
    classifier_checkpoint: Path, labelled: Path, train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_checkpoint(classifier_checkpoint)
    surgeon = Surgeon(source, source.task(), read(classifier_checkpoint, labelled, train_file), None)
    kept = Candidate(layers=(1,), intermediate_size=24)

    def write_half(model: Any, folder: Path, **given: Any) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bert_export.compression.surgery.save_model", write_half)
        with pytest.raises(KeyboardInterrupt):
            surgeon.save(kept, tmp_path / "cut")
    assert not (tmp_path / "cut").exists()
    surgeon.save(kept, tmp_path / "cut")
    assert open_checkpoint(tmp_path / "cut").config.num_layers == 1
